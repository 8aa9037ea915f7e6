package controllers

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/validatingadmissionpolicystatus"

	"byre/apiserver/storage"
	"byre/watch"
)

const (
	collectorWorkers = 20
	// resyncPeriod is how often the collector reads discovery.
	resyncPeriod = 30 * time.Second
)

// newGarbageCollector builds upstream's garbage collector over graphInformers. The
// collector needs only the metadata of objects. kube-controller-manager gives it informers
// of typed objects, which it shares with many other controllers.
func newGarbageCollector(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	discovery := cc.kube.Discovery()
	// The mapper needs a cache of its own: the collector resets the mapper when the preferred
	// versions in discovery, which it reads without a cache, have changed. An owner may be named in another version.
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discovery))
	c, err := garbagecollector.NewGarbageCollector(ctx, cc.kube, cc.metadata, mapper,
		garbagecollector.DefaultIgnoredResources(),
		graphInformers{cc.NewMetadataWatch, cc.metadataInformers}, cc.InformersStarted)
	if err != nil {
		return nil, err
	}
	return together(
		func(ctx context.Context) { resetPeriodically(ctx, mapper) },
		func(ctx context.Context) { c.Run(ctx, collectorWorkers, resyncPeriod) },
		func(ctx context.Context) { c.Sync(ctx, discovery, resyncPeriod) },
	), nil
}

const (
	policyWorkers = 5
	// discoveryRefreshInterval is how often a REST mapper reads discovery again, as in
	// kube-controller-manager.
	discoveryRefreshInterval = 30 * time.Second
)

// resetPeriodically makes a mapper read discovery again, until ctx ends.
func resetPeriodically(ctx context.Context, mapper *restmapper.DeferredDiscoveryRESTMapper) {
	wait.UntilWithContext(ctx, func(context.Context) { mapper.Reset() }, discoveryRefreshInterval)
}

// newPolicyStatus builds the controller that checks the types of
// ValidatingAdmissionPolicies. Its schema resolver reads the server's OpenAPI documents
// when it checks a policy, and so uses no memory without policies.
// kube-controller-manager resolves built-in types from compiled-in definitions, which take
// tens of megabytes.
func newPolicyStatus(_ context.Context, cc *controllerContext) (func(context.Context), error) {
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(cc.kube.Discovery()))
	c, err := validatingadmissionpolicystatus.NewController(
		cc.InformerFactory.Admissionregistration().V1().ValidatingAdmissionPolicies(),
		cc.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies(),
		&validating.TypeChecker{
			SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: cc.kube.Discovery()},
			RestMapper:     mapper,
		})
	if err != nil {
		return nil, err
	}
	return together(
		func(ctx context.Context) { resetPeriodically(ctx, mapper) },
		func(ctx context.Context) { c.Run(ctx, policyWorkers) },
	), nil
}

// graphInformers is the informer factory of the garbage collector. For a resource that
// this server stores, it returns a graphInformer, which reads the store. For a resource of
// an aggregated API server, it returns an informer of client-go, which uses the API.
//
// The garbage collector needs an informer of every resource. An informer of client-go has
// about twelve goroutines and a copy of every object, and its watch encodes and decodes
// every event. A graphInformer needs one goroutine, which the collector starts in either
// case, and keeps no objects.
type graphInformers struct {
	newWatch func(schema.GroupResource) *storage.MetadataWatch
	remote   metadatainformer.SharedInformerFactory
}

// ForResource implements informerfactory.InformerFactory.
func (f graphInformers) ForResource(resource schema.GroupVersionResource) (informers.GenericInformer, error) {
	if w := f.newWatch(resource.GroupResource()); w != nil {
		return &graphInformer{source: w, resource: resource.GroupResource()}, nil
	}
	return f.remote.ForResource(resource), nil
}

// Start implements informerfactory.InformerFactory. It starts the informers of client-go;
// the collector itself runs each graphInformer.
func (f graphInformers) Start(stop <-chan struct{}) { f.remote.Start(stop) }

// graphInformer implements the methods of an informer that the collector's graph builder
// calls. It has one event handler and keeps no objects. The methods that the graph builder
// does not call panic, because the embedded interface is nil.
type graphInformer struct {
	cache.SharedIndexInformer
	source   *storage.MetadataWatch
	resource schema.GroupResource
	handler  cache.ResourceEventHandler
	synced   atomic.Bool
}

// Informer implements informers.GenericInformer.
func (i *graphInformer) Informer() cache.SharedIndexInformer { return i }

// Lister implements informers.GenericInformer. It returns nil: there is no cache.
func (i *graphInformer) Lister() cache.GenericLister { return nil }

// GetStore implements cache.SharedInformer. It returns nil: there is no cache.
func (i *graphInformer) GetStore() cache.Store { return nil }

// GetController implements cache.SharedInformer.
func (i *graphInformer) GetController() cache.Controller { return i }

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer. There is no
// resync, because no event between the store and the handler can be lost.
func (i *graphInformer) AddEventHandlerWithResyncPeriod(
	handler cache.ResourceEventHandler, _ time.Duration,
) (cache.ResourceEventHandlerRegistration, error) {
	i.handler = handler
	return i, nil
}

// HasSynced implements cache.Controller. It reports whether the handler has received all
// objects that existed at the start.
func (i *graphInformer) HasSynced() bool { return i.synced.Load() }

// Run implements cache.Controller.
func (i *graphInformer) Run(stop <-chan struct{}) {
	i.RunWithContext(wait.ContextForChannel(stop))
}

// retryPeriod is the time after which a failed read of the store is retried.
const retryPeriod = time.Second

// RunWithContext implements cache.Controller. It passes events to the handler until ctx
// ends. It logs the first of several failures in a row: there are as many informers as
// resources, and each tries once a second while the database is away.
func (i *graphInformer) RunWithContext(ctx context.Context) {
	defer i.source.Close()
	isFailing := false
	for ctx.Err() == nil {
		events, err := i.source.Next(ctx)
		for _, event := range events {
			i.dispatch(event)
		}
		switch {
		case err == nil:
			i.synced.Store(true)
			isFailing = false
		case ctx.Err() != nil, errors.Is(err, watch.ErrClosed):
			return
		default:
			if !isFailing {
				klog.FromContext(ctx).Error(err, "Cannot read the metadata of a resource for garbage collection; will try again",
					"resource", i.resource)
			}
			isFailing = true
			pause(ctx)
		}
	}
}

func (i *graphInformer) dispatch(event storage.MetadataEvent) {
	switch event.Type {
	case apiwatch.Added:
		i.handler.OnAdd(event.Object, !i.synced.Load())
	case apiwatch.Deleted:
		i.handler.OnDelete(event.Object)
	case apiwatch.Modified:
		if event.Old == nil {
			i.handler.OnUpdate(nil, event.Object) // not event.Old: a typed nil is not a nil interface
		} else {
			i.handler.OnUpdate(event.Old, event.Object)
		}
	}
}
