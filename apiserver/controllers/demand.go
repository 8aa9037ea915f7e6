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
	"k8s.io/client-go/informers/admissionregistration"
	"k8s.io/client-go/informers/apiserverinternal"
	"k8s.io/client-go/informers/apps"
	"k8s.io/client-go/informers/autoscaling"
	"k8s.io/client-go/informers/batch"
	"k8s.io/client-go/informers/certificates"
	"k8s.io/client-go/informers/coordination"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/discovery"
	"k8s.io/client-go/informers/events"
	"k8s.io/client-go/informers/extensions"
	"k8s.io/client-go/informers/flowcontrol"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/lifecycle"
	"k8s.io/client-go/informers/networking"
	"k8s.io/client-go/informers/node"
	"k8s.io/client-go/informers/policy"
	"k8s.io/client-go/informers/rbac"
	"k8s.io/client-go/informers/resource"
	"k8s.io/client-go/informers/scheduling"
	storageinformers "k8s.io/client-go/informers/storage"
	"k8s.io/client-go/informers/storagemigration"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"byre/apiserver/process"
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

// gate holds the events for a controller back while its constructor runs.
//
// Invariant: no event reaches a handler before the constructor that has added it has
// returned. Upstream's constructors add handlers before they set all that these read:
// kube-controller-manager starts its informers after it has built all controllers. Here a
// controller may be built while informers run. Without the gate an EndpointSlice that came
// too early ended the process: the handler of upstream's controller found no reconciler.
type gate struct {
	built, ended <-chan struct{}
}

// wait returns true when the constructor has returned, and false if the controllers ended
// before.
func (g gate) wait() bool {
	select {
	case <-g.built:
		return true
	case <-g.ended:
		return false
	}
}

// gatedInformer is an informer whose new handlers wait at the gate.
type gatedInformer struct {
	cache.SharedIndexInformer
	gate gate
}

func (i gatedInformer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandler(gatedHandler{h, i.gate})
}

func (i gatedInformer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, resync time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(gatedHandler{h, i.gate}, resync)
}

func (i gatedInformer) AddEventHandlerWithOptions(h cache.ResourceEventHandler, options cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithOptions(gatedHandler{h, i.gate}, options)
}

// gatedHandler has its events wait at the gate, in the goroutine that the informer has for
// this handler.
type gatedHandler struct {
	cache.ResourceEventHandler
	gate gate
}

func (h gatedHandler) OnAdd(object any, isInInitialList bool) {
	if h.gate.wait() {
		h.ResourceEventHandler.OnAdd(object, isInInitialList)
	}
}

func (h gatedHandler) OnUpdate(before, after any) {
	if h.gate.wait() {
		h.ResourceEventHandler.OnUpdate(before, after)
	}
}

func (h gatedHandler) OnDelete(object any) {
	if h.gate.wait() {
		h.ResourceEventHandler.OnDelete(object)
	}
}

// gatedFactory has the informers of the factory below it for one constructor. The handlers that
// the constructor adds wait at the gate.
//
// Invariant: each method that returns informers asks InformerFor of this factory for them. A method
// of the embedded factory would ask its own, without the gate.
type gatedFactory struct {
	informers.SharedInformerFactory
	gate gate
}

// InformerFor implements informers.SharedInformerFactory.
func (f gatedFactory) InformerFor(object runtime.Object, newInformer internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	return gatedInformer{f.SharedInformerFactory.InformerFor(object, newInformer), f.gate}
}

// ForResource implements informers.SharedInformerFactory. No controller with a gate needs it.
func (f gatedFactory) ForResource(schema.GroupVersionResource) (informers.GenericInformer, error) {
	return nil, errors.ErrUnsupported
}

func (f gatedFactory) Apps() apps.Interface                 { return apps.New(f, "", nil) }
func (f gatedFactory) Autoscaling() autoscaling.Interface   { return autoscaling.New(f, "", nil) }
func (f gatedFactory) Batch() batch.Interface               { return batch.New(f, "", nil) }
func (f gatedFactory) Certificates() certificates.Interface { return certificates.New(f, "", nil) }
func (f gatedFactory) Coordination() coordination.Interface { return coordination.New(f, "", nil) }
func (f gatedFactory) Core() core.Interface                 { return core.New(f, "", nil) }
func (f gatedFactory) Discovery() discovery.Interface       { return discovery.New(f, "", nil) }
func (f gatedFactory) Events() events.Interface             { return events.New(f, "", nil) }
func (f gatedFactory) Extensions() extensions.Interface     { return extensions.New(f, "", nil) }
func (f gatedFactory) Flowcontrol() flowcontrol.Interface   { return flowcontrol.New(f, "", nil) }
func (f gatedFactory) Lifecycle() lifecycle.Interface       { return lifecycle.New(f, "", nil) }
func (f gatedFactory) Networking() networking.Interface     { return networking.New(f, "", nil) }
func (f gatedFactory) Node() node.Interface                 { return node.New(f, "", nil) }
func (f gatedFactory) Policy() policy.Interface             { return policy.New(f, "", nil) }
func (f gatedFactory) Rbac() rbac.Interface                 { return rbac.New(f, "", nil) }
func (f gatedFactory) Resource() resource.Interface         { return resource.New(f, "", nil) }
func (f gatedFactory) Scheduling() scheduling.Interface     { return scheduling.New(f, "", nil) }
func (f gatedFactory) Storage() storageinformers.Interface  { return storageinformers.New(f, "", nil) }

func (f gatedFactory) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(f, "", nil)
}

func (f gatedFactory) Internal() apiserverinternal.Interface {
	return apiserverinternal.New(f, "", nil)
}

func (f gatedFactory) Storagemigration() storagemigration.Interface {
	return storagemigration.New(f, "", nil)
}

func stripManagedFields(object any) (any, error) { return process.StripManagedFields(object) }

// trimPod removes from a Pod what no cluster controller reads: most of the containers,
// their statuses and the annotations. What remains is about a fifth of a usual Pod.
//
// The controllers for endpoints read ports, addresses and conditions; the garbage
// collector of Pods and the eviction by taints read the node, the phase and the
// tolerations, and write statuses by patches; the protection of claims reads the volumes.
func trimPod(object any) (any, error) {
	pod, ok := object.(*v1.Pod)
	if !ok {
		return process.StripManagedFields(object)
	}
	pod.ManagedFields = nil
	pod.Annotations = nil
	pod.Spec.Containers = trimContainers(pod.Spec.Containers)
	pod.Spec.InitContainers = trimContainers(pod.Spec.InitContainers)
	pod.Spec.EphemeralContainers = nil
	pod.Spec.Affinity = nil
	pod.Spec.TopologySpreadConstraints = nil
	pod.Spec.Volumes = slices.DeleteFunc(slices.Clone(pod.Spec.Volumes), func(v v1.Volume) bool {
		return v.PersistentVolumeClaim == nil && v.Ephemeral == nil
	})
	pod.Status.ContainerStatuses = nil
	pod.Status.InitContainerStatuses = nil
	pod.Status.EphemeralContainerStatuses = nil
	return pod, nil
}

func trimContainers(containers []v1.Container) []v1.Container {
	var trimmed []v1.Container
	for _, c := range containers {
		trimmed = append(trimmed, v1.Container{Name: c.Name, Ports: c.Ports, RestartPolicy: c.RestartPolicy})
	}
	return trimmed
}
