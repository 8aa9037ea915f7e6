package controllers

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Lease describes the Lease object with which the servers that share a database elect the
// one that runs the controllers.
type Lease struct {
	// Name is the name of the Lease in the namespace kube-system.
	Name string
	// Identity is unique among all processes that use the Lease.
	Identity string
}

func (l *Lease) lock(config *rest.Config) (resourcelock.Interface, error) {
	client, err := kubeClient(config, "leader-election")
	if err != nil {
		return nil, err
	}
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: l.Name},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: l.Identity},
	}, nil
}
