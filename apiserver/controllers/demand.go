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

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	cacheddiscovery "k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller"

	"byre/apiserver/process"
	"byre/apiserver/storage"
)

// minResyncPeriod is the least time after which an informer passes all objects to the controllers again, as in
// kube-controller-manager. A controller that has given up an object after several failures takes it up then.
const minResyncPeriod = 12 * time.Hour

// quotaSyncPeriod is how often the usage of each quota is computed anew. Until then admission refuses the objects of a
// counted resource that is newer than the controller. kube-controller-manager waits for 5 minutes.
const quotaSyncPeriod = time.Minute

// runOnDemand runs the controllers that stop while a kube-controller-manager leads, until ctx ends. It builds them when
// there is the first object of their triggers: until then their informers would only take memory.
func (r *Runner) runOnDemand(ctx context.Context, root clients, controllers map[string]descriptor) {
	triggers, served := make(map[schema.GroupResource]bool), make(map[string]descriptor)
	for name, d := range controllers {
		for _, gr := range d.triggers {
			if source := r.config.NewMetadataWatch(gr); source != nil {
				source.Close()
				triggers[gr], served[name] = true, d
			}
		}
	}
	found, cancel := context.WithCancel(ctx)
	defer cancel()
	var waiting sync.WaitGroup
	for gr := range triggers {
		waiting.Go(func() {
			if r.awaitObject(found, gr) {
				cancel()
			}
		})
	}
	<-found.Done()
	waiting.Wait()
	if ctx.Err() != nil {
		return
	}
	if err := r.runBuilt(ctx, root, served); err != nil {
		utilruntime.HandleErrorWithContext(ctx, err, "The controllers could not start")
		<-ctx.Done()
	}
}

// awaitObject waits until there is an object of a served resource that controllers work on. It returns false when ctx
// ends before.
func (r *Runner) awaitObject(ctx context.Context, gr schema.GroupResource) bool {
	source := r.config.NewMetadataWatch(gr)
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

// isWork reports whether an event shows an object that a controller works on. The Service of the API server itself and
// the default ServiceCIDR are none, which each server has: package bootstrap keeps them.
func isWork(gr schema.GroupResource, event storage.MetadataEvent) bool {
	isOwn := gr == serviceCIDRs || gr == services && event.Object.Namespace == corev1.NamespaceDefault
	return !isOwn || event.Object.Name != "kubernetes"
}

// runBuilt builds the controllers, starts their informers and runs the controllers until ctx ends, in the order of
// kube-controller-manager: upstream's constructors add event handlers before they set all that these read.
func (r *Runner) runBuilt(ctx context.Context, root clients, controllers map[string]descriptor) error {
	shared := newSharedInformers(root)
	base, err := r.config.newContext(root, shared)
	if err != nil {
		return err
	}
	runs := []func(context.Context){func(ctx context.Context) { resetPeriodically(ctx, base.RESTMapper) }}
	for name, d := range controllers {
		cc := base
		run, err := d.construct(ctx, name, &cc)
		switch {
		case err != nil:
			utilruntime.HandleErrorWithContext(ctx, err, "A controller could not start", "controller", name)
		case run == nil:
		case name == names.PodGarbageCollectorController && !r.config.WithControllerManager:
			// Where there is no Node, a Pod of one is not an orphan: nobody runs Pods.
			runs = append(runs, func(ctx context.Context) {
				if r.awaitObject(ctx, nodes) {
					run(ctx)
				}
			})
		default:
			runs = append(runs, run)
		}
	}
	shared.Start(ctx.Done())
	close(base.InformersStarted)
	klog.FromContext(ctx).V(1).Info("Running controllers", "controllers", len(runs))
	together(runs...)(ctx)
	shared.release(ctx)
	return nil
}

// newContext returns what controllers of upstream's constructors share.
func (c *Config) newContext(root clients, shared sharedInformers) (controllerContext, error) {
	settings, err := defaultSettings()
	if err != nil {
		return controllerContext{}, err
	}
	if _, err := os.Stat(c.Files.CAKey); !errors.Is(err, fs.ErrNotExist) {
		signing := &settings.CSRSigningController
		signing.ClusterSigningCertFile, signing.ClusterSigningKeyFile = c.Files.CACert, c.Files.CAKey
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cacheddiscovery.NewMemCacheClient(root.kube.Discovery()))
	settings.ResourceQuotaController.ResourceQuotaSyncPeriod.Duration = quotaSyncPeriod
	return controllerContext{
		ControllerContext: app.ControllerContext{
			ComponentConfig:                 settings,
			InformerFactory:                 shared,
			ObjectOrMetadataInformerFactory: shared,
			InformersStarted:                make(chan struct{}),
			ResyncPeriod:                    controller.NoResyncPeriodFunc, // the quota controller computes all anew
			RESTMapper:                      mapper,
		},
		Config: c,
		root:   root,
	}, nil
}

// sharedInformers are the informers of all controllers but the essential ones. The resource quota controller, which
// counts objects of every resource, gets the metadata of those objects whose contents no quota counts.
type sharedInformers struct {
	informers.SharedInformerFactory
	metadata metadatainformer.SharedInformerFactory
}

func newSharedInformers(root clients) sharedInformers {
	return sharedInformers{
		informers.NewSharedInformerFactoryWithOptions(root.kube, wait.Jitter(minResyncPeriod, 1),
			informers.WithTransform(process.StripManagedFields)),
		metadatainformer.NewSharedInformerFactoryWithOptions(root.metadata, 0,
			metadatainformer.WithTransform(process.StripManagedFields)),
	}
}

// ForResource implements informerfactory.InformerFactory. Only the resource quota controller calls it.
func (s sharedInformers) ForResource(resource schema.GroupVersionResource) (informers.GenericInformer, error) {
	switch resource.GroupResource() {
	case pods, services, claims, groupResource("", "resourcequotas"), resourcev1.Resource("resourceclaims"):
		return s.SharedInformerFactory.ForResource(resource)
	default:
		return s.metadata.ForResource(resource), nil
	}
}

// Start implements informerfactory.InformerFactory.
func (s sharedInformers) Start(stop <-chan struct{}) {
	s.SharedInformerFactory.Start(stop)
	s.metadata.Start(stop)
}

// release waits for the informers, which ctx has ended, and empties their caches: the metrics of some of upstream's
// controllers refer to those of the first term as long as the process runs.
func (s sharedInformers) release(ctx context.Context) {
	s.Shutdown()
	s.metadata.Shutdown()
	for kind := range s.WaitForCacheSync(ctx.Done()) {
		object, _ := reflect.New(kind.Elem()).Interface().(runtime.Object)
		_ = s.InformerFor(object, nil).GetStore().Replace(nil, "") // has no object that could fail
	}
}
