package registry

import (
	deploymentstore "k8s.io/kubernetes/pkg/registry/apps/deployment/storage"
	replicasetstore "k8s.io/kubernetes/pkg/registry/apps/replicaset/storage"
	statefulsetstore "k8s.io/kubernetes/pkg/registry/apps/statefulset/storage"
	evictionstore "k8s.io/kubernetes/pkg/registry/lifecycle/eviction/storage"
	csidriverstore "k8s.io/kubernetes/pkg/registry/storage/csidriver/storage"
	csinodestore "k8s.io/kubernetes/pkg/registry/storage/csinode/storage"
	csistoragecapacitystore "k8s.io/kubernetes/pkg/registry/storage/csistoragecapacity/storage"
	volumeattachmentstore "k8s.io/kubernetes/pkg/registry/storage/volumeattachment/storage"
	"k8s.io/utils/clock"
)

func deployments(p *storageProvider) (storages, error) {
	s, err := deploymentstore.NewStorage(p.RESTOptions)
	if err != nil {
		return nil, err
	}
	return storages{"": s.Deployment, "status": s.Status, "scale": s.Scale}, nil
}

func statefulSets(p *storageProvider) (storages, error) {
	s, err := statefulsetstore.NewStorage(p.RESTOptions)
	if err != nil {
		return nil, err
	}
	return storages{"": s.StatefulSet, "status": s.Status, "scale": s.Scale}, nil
}

func replicaSets(p *storageProvider) (storages, error) {
	s, err := replicasetstore.NewStorage(p.RESTOptions)
	if err != nil {
		return nil, err
	}
	return storages{"": s.ReplicaSet, "status": s.Status, "scale": s.Scale}, nil
}

func volumeAttachments(p *storageProvider) (storages, error) {
	s, err := volumeattachmentstore.NewStorage(p.RESTOptions)
	if err != nil {
		return nil, err
	}
	return storages{"": s.VolumeAttachment, "status": s.Status}, nil
}

func csiNodes(p *storageProvider) (storages, error) {
	s, err := csinodestore.NewStorage(p.RESTOptions)
	if err != nil {
		return nil, err
	}
	return storages{"": s.CSINode, "status": s.Status}, nil
}

func lifecycleEvictions(p *storageProvider) (storages, error) {
	s, status, err := evictionstore.NewREST(p.RESTOptions, clock.RealClock{})
	if err != nil {
		return nil, err
	}
	return storages{"": s, "status": status}, nil
}

func csiDrivers(p *storageProvider) (storages, error) {
	s, err := csidriverstore.NewStorage(p.RESTOptions)
	if err != nil {
		return nil, err
	}
	return storages{"": s.CSIDriver}, nil
}

func csiStorageCapacities(p *storageProvider) (storages, error) {
	s, err := csistoragecapacitystore.NewStorage(p.RESTOptions)
	if err != nil {
		return nil, err
	}
	return storages{"": s.CSIStorageCapacity}, nil
}
