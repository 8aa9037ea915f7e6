package controllers

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/klog/v2"

	"byre/apiserver/storage"
)

// onDemand runs the controllers that stop while a kube-controller-manager leads. Each
// starts when there is an object for it to work on.
//
// All controllers share the informers, so that the server keeps each object at
// most once. A controller that starts late adds its informers to those that run.
type onDemand struct {
	cc          *controllerContext
	informers   informers.SharedInformerFactory
	controllers map[string]descriptor
	// mutex is held while a controller is built: the constructors of upstream's
	// controllers share informers and the metrics registry.
	mutex sync.Mutex
}

// run runs the controllers until ctx ends.
func (o *onDemand) run(ctx context.Context) {
	var group sync.WaitGroup
	triggered := make(map[schema.GroupResource][]func())
	for name, d := range o.controllers {
		wanted := make(chan struct{})
		want := sync.OnceFunc(func() { close(wanted) })
		for _, gr := range d.triggers {
			triggered[gr] = append(triggered[gr], want)
		}
		if len(d.triggers) == 0 {
			want()
		}
		group.Go(func() {
			select {
			case <-ctx.Done():
			case <-wanted:
				o.runController(ctx, name, d)
			}
		})
	}
	for gr, wants := range triggered {
		group.Go(func() {
			if o.awaitObject(ctx, gr) {
				for _, want := range wants {
					want()
				}
			}
		})
	}
	group.Wait()
	o.informers.Shutdown()
	// The metrics of some of upstream's controllers refer to the caches of the first term as long as the process runs.
	for kind := range o.informers.WaitForCacheSync(ctx.Done()) {
		object, _ := reflect.New(kind.Elem()).Interface().(runtime.Object)
		_ = o.informers.InformerFor(object, nil).GetStore().Replace(nil, "") // has no object that could fail
	}
}

// runController runs a controller until ctx ends.
func (o *onDemand) runController(ctx context.Context, name string, d descriptor) {
	run, err := o.build(ctx, name, d)
	if err != nil {
		utilruntime.HandleErrorWithContext(ctx, err, "A controller could not start", "controller", name)
		return
	}
	if run != nil {
		klog.FromContext(ctx).V(1).Info("Running a controller", "controller", name)
		run(ctx)
	}
}

func (o *onDemand) build(ctx context.Context, name string, d descriptor) (func(context.Context), error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	built, cc := make(chan struct{}), *o.cc
	cc.InformerFactory = gatedFactory{o.informers, gate{built: built, ended: ctx.Done()}}
	if _, err := os.Stat(cc.Files.CAKey); !errors.Is(err, fs.ErrNotExist) {
		signing := &cc.ComponentConfig.CSRSigningController
		signing.ClusterSigningCertFile, signing.ClusterSigningKeyFile = cc.Files.CACert, cc.Files.CAKey
	}
	run, err := d.construct(ctx, name, &cc)
	if err != nil {
		return nil, err
	}
	close(built)
	o.informers.StartWithContext(ctx)
	return run, nil
}

// awaitObject waits until there is an object of the resource that a controller works on.
// It returns false when ctx ends before, or if the resource is not served.
func (o *onDemand) awaitObject(ctx context.Context, gr schema.GroupResource) bool {
	source := o.cc.NewMetadataWatch(gr)
	if source == nil {
		return false
	}
	defer source.Close()
	for ctx.Err() == nil {
		events, err := source.Next(ctx)
		if slices.ContainsFunc(events, func(event storage.MetadataEvent) bool { return isWork(gr, event) }) {
			return true
		}
		if err != nil {
			pause(ctx)
		}
	}
	return false
}

// isWork reports whether an event shows an object that a controller works on. The
// Service of the API server itself is not one, because package bootstrap keeps its
// endpoints.
func isWork(gr schema.GroupResource, event storage.MetadataEvent) bool {
	return gr != services || event.Object.Namespace != v1.NamespaceDefault || event.Object.Name != "kubernetes"
}

// minResyncPeriod is the least time after which an informer passes all objects to the controllers again, as in
// kube-controller-manager. A controller that has given up an object after several failures takes it up then.
const minResyncPeriod = 12 * time.Hour

// newInformers returns an informer factory for the given controllers. If none of them is
// a workload controller, its Pods lack the fields that only workload controllers read.
func newInformers(root clients, controllers map[string]descriptor) informers.SharedInformerFactory {
	transform := trimPod
	for _, d := range controllers {
		if d.class != cluster {
			transform = stripManagedFields
		}
	}
	return informers.NewSharedInformerFactoryWithOptions(root.kube, wait.Jitter(minResyncPeriod, 1), informers.WithTransform(transform))
}
