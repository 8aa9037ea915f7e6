package controllers

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// leaseWatch follows one Lease in kube-system.
type leaseWatch struct {
	name    string
	factory informers.SharedInformerFactory
	synced  cache.InformerSynced
	// leases receives each state of the Lease. Its capacity is 1: only the last counts.
	leases chan *coordinationv1.Lease
}

func newLeaseWatch(client kubernetes.Interface, name string) (*leaseWatch, error) {
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	l := &leaseWatch{
		name:   name,
		leases: make(chan *coordinationv1.Lease, 1),
		factory: informers.NewSharedInformerFactoryWithOptions(client, 0,
			informers.WithNamespace(metav1.NamespaceSystem),
			informers.WithTransform(stripManagedFields),
			informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = only })),
	}
	informer := l.factory.Coordination().V1().Leases().Informer()
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    l.put,
		UpdateFunc: func(_, object any) { l.put(object) },
		DeleteFunc: func(any) { l.put(&coordinationv1.Lease{}) },
	})
	if err != nil {
		return nil, err
	}
	l.synced = registration.HasSynced
	return l, nil
}

// put replaces the value in leases. One goroutine calls it.
func (l *leaseWatch) put(object any) {
	lease, ok := object.(*coordinationv1.Lease)
	if !ok {
		return
	}
	select {
	case <-l.leases:
	default:
	}
	l.leases <- lease
}

// runWithout calls work whenever no other program holds the Lease of that name. It ends work's
// context when one takes the Lease, waits for work to return, and calls it again when the
// Lease has been released or has expired. It returns when ctx ends.
func runWithout(ctx context.Context, client kubernetes.Interface, name string, work func(context.Context)) error {
	l, err := newLeaseWatch(client, name)
	if err != nil {
		return err
	}
	l.factory.StartWithContext(ctx)
	defer l.factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), l.synced) {
		return nil
	}
	var end time.Time // when the Lease expires
	select {
	case lease := <-l.leases:
		end = expiry(lease)
	default:
	}
	stop := func() {}
	defer func() { stop() }()
	running := false
	for {
		if left := time.Until(end); left <= 0 && !running {
			running, stop = true, start(ctx, work)
		} else if left > 0 && running {
			stop()
			running, stop = false, func() {}
			klog.FromContext(ctx).Info("Paused, because another process leads", "lease", l.name, "namespace", metav1.NamespaceSystem)
		}
		var expired <-chan time.Time
		if !running {
			expired = time.After(time.Until(end))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-expired:
		case lease := <-l.leases:
			end = expiry(lease)
		}
	}
}

// expiry returns when a Lease that was seen just now expires; the zero time if nobody
// holds it any more. Like client-go's leader election, it does not use the time of the renewal,
// because the holder's clock may differ from this one. A server of byre that holds it is gone: no two
// servers run controllers at a time, and this one does.
func expiry(lease *coordinationv1.Lease) time.Time {
	spec := lease.Spec
	if spec.HolderIdentity == nil || *spec.HolderIdentity == "" || isOtherServer(*spec.HolderIdentity) || spec.LeaseDurationSeconds == nil {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(*spec.LeaseDurationSeconds) * time.Second)
}

// start calls work in a goroutine. stop ends work's context and waits for work to return.
func start(ctx context.Context, work func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	working.Go(func() { work(ctx) })
	return func() {
		cancel()
		working.Wait()
	}
}
