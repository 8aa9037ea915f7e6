package controllers

import (
	"context"

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
	return uncancelledUpdates{&resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: l.Name},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: l.Identity},
	}}, nil
}

// uncancelledUpdates is a lock whose updates end with their deadline or their answer,
// but not when their context is canceled. An elector whose context is canceled reads
// the Lease and releases it by an update. If it had abandoned a renewal just before,
// the server could still commit that renewal between the two: the release would end
// with a conflict, and the other servers would wait until the Lease expires.
type uncancelledUpdates struct{ resourcelock.Interface }

// Update writes the record to the Lease.
func (l uncancelledUpdates) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	update := context.WithoutCancel(ctx)
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		update, cancel = context.WithDeadline(update, deadline)
		defer cancel()
	}
	return l.Interface.Update(update, record)
}
