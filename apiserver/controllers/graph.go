package controllers

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"byre/apiserver/objectstore"
	"byre/watch"
)

// graphInformers gives the garbage collector what its graph is made of: of
// resources that this server stores, from the bytes in the store; of those that
// other servers keep, by the API.
//
// An informer of client-go is a dozen goroutines and a copy of every object,
// which come over a watch that is encoded for it and decoded again; the
// collector wants one of every resource there is. From the store it costs one
// goroutine, which is the one that the collector runs for it anyway.
type graphInformers struct {
	newWatch func(schema.GroupResource) *objectstore.MetadataWatch
	remote   metadatainformer.SharedInformerFactory
}

// ForResource implements informerfactory.InformerFactory.
func (f graphInformers) ForResource(resource schema.GroupVersionResource) (informers.GenericInformer, error) {
	if w := f.newWatch(resource.GroupResource()); w != nil {
		return &graphInformer{source: w, resource: resource.GroupResource()}, nil
	}
	return f.remote.ForResource(resource), nil
}

// Start implements informerfactory.InformerFactory. The collector runs the
// graphInformers itself.
func (f graphInformers) Start(stop <-chan struct{}) { f.remote.Start(stop) }

// graphInformer is an informer as far as the collector's graph uses one: it
// takes one handler, keeps no objects, and works while its controller runs. The
// methods that the graph does not call, which are those of a cache, panic.
type graphInformer struct {
	cache.SharedIndexInformer
	source   *objectstore.MetadataWatch
	resource schema.GroupResource
	handler  cache.ResourceEventHandler
	synced   atomic.Bool
}

// Informer implements informers.GenericInformer.
func (i *graphInformer) Informer() cache.SharedIndexInformer { return i }

// Lister implements informers.GenericInformer: there is nothing to list.
func (i *graphInformer) Lister() cache.GenericLister { return nil }

// GetStore implements cache.SharedInformer: nothing is kept.
func (i *graphInformer) GetStore() cache.Store { return nil }

// GetController implements cache.SharedInformer.
func (i *graphInformer) GetController() cache.Controller { return i }

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer. There is no
// resync: no event is lost between the store and the handler.
func (i *graphInformer) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, _ time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	i.handler = handler
	return i, nil
}

// HasSynced implements cache.Controller: whether the handler has seen all that
// there was.
func (i *graphInformer) HasSynced() bool { return i.synced.Load() }

// Run implements cache.Controller.
func (i *graphInformer) Run(stop <-chan struct{}) {
	i.RunWithContext(wait.ContextForChannel(stop))
}

// retryPeriod is the time between attempts to read what can't be read now.
const retryPeriod = time.Second

// RunWithContext implements cache.Controller: it hands over events until ctx
// ends.
func (i *graphInformer) RunWithContext(ctx context.Context) {
	defer i.source.Close()
	for ctx.Err() == nil {
		events, err := i.source.Next(ctx)
		for _, event := range events {
			i.dispatch(event)
		}
		switch {
		case err == nil:
			i.synced.Store(true)
		case ctx.Err() != nil, errors.Is(err, watch.ErrClosed):
			return
		default:
			klog.FromContext(ctx).Error(err, "Owners can't be read; trying again", "resource", i.resource)
			select {
			case <-ctx.Done():
			case <-time.After(retryPeriod):
			}
		}
	}
}

func (i *graphInformer) dispatch(event objectstore.MetadataEvent) {
	switch event.Type {
	case apiwatch.Added:
		i.handler.OnAdd(event.Object, !i.synced.Load())
	case apiwatch.Deleted:
		i.handler.OnDelete(event.Object)
	case apiwatch.Modified:
		if event.Old == nil {
			i.handler.OnUpdate(nil, event.Object) // a typed nil is not nil to the graph
		} else {
			i.handler.OnUpdate(event.Old, event.Object)
		}
	}
}
