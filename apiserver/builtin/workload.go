package builtin

import (
	deploymentstore "k8s.io/kubernetes/pkg/registry/apps/deployment/storage"
	replicasetstore "k8s.io/kubernetes/pkg/registry/apps/replicaset/storage"
	statefulsetstore "k8s.io/kubernetes/pkg/registry/apps/statefulset/storage"
	csidriverstore "k8s.io/kubernetes/pkg/registry/storage/csidriver/storage"
	csinodestore "k8s.io/kubernetes/pkg/registry/storage/csinode/storage"
	csistoragecapacitystore "k8s.io/kubernetes/pkg/registry/storage/csistoragecapacity/storage"
	volumeattachmentstore "k8s.io/kubernetes/pkg/registry/storage/volumeattachment/storage"
)

func deployments(w *wiring) (storages, error) {
	s, err := deploymentstore.NewStorage(w.RESTOptions)
	if err != nil {
		return nil, err
	}
	return storages{"": s.Deployment, "status": s.Status, "scale": s.Scale}, nil
}

func statefulSets(w *wiring) (storages, error) {
	s, err := statefulsetstore.NewStorage(w.RESTOptions)
	if err != nil {
		return nil, err
	}
	return storages{"": s.StatefulSet, "status": s.Status, "scale": s.Scale}, nil
}

func replicaSets(w *wiring) (storages, error) {
	s, err := replicasetstore.NewStorage(w.RESTOptions)
	if err != nil {
		return nil, err
	}
	return storages{"": s.ReplicaSet, "status": s.Status, "scale": s.Scale}, nil
}

func volumeAttachments(w *wiring) (storages, error) {
	s, err := volumeattachmentstore.NewStorage(w.RESTOptions)
	if err != nil {
		return nil, err
	}
	return storages{"": s.VolumeAttachment, "status": s.Status}, nil
}

func csiNodes(w *wiring) (storages, error) {
	s, err := csinodestore.NewStorage(w.RESTOptions)
	if err != nil {
		return nil, err
	}
	return storages{"": s.CSINode}, nil
}

func csiDrivers(w *wiring) (storages, error) {
	s, err := csidriverstore.NewStorage(w.RESTOptions)
	if err != nil {
		return nil, err
	}
	return storages{"": s.CSIDriver}, nil
}

func csiStorageCapacities(w *wiring) (storages, error) {
	s, err := csistoragecapacitystore.NewStorage(w.RESTOptions)
	if err != nil {
		return nil, err
	}
	return storages{"": s.CSIStorageCapacity}, nil
}
