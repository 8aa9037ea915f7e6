package controllers

import (
	"time"

	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/informers/storagemigration"
	"k8s.io/client-go/tools/cache"
)

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

// gatedFactory is a SharedInformerFactory for one constructor. The informers are those of
// the factory below it, in all namespaces; the handlers that are added wait at the gate.
// Those of ForResource do not wait: no constructor of a controller calls it.
type gatedFactory struct {
	informers.SharedInformerFactory
	gate gate
}

// InformerFor implements internalinterfaces.SharedInformerFactory, for the groups below.
func (f gatedFactory) InformerFor(object runtime.Object, newInformer internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	return gatedInformer{f.SharedInformerFactory.InformerFor(object, newInformer), f.gate}
}

func (f gatedFactory) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(f, v1.NamespaceAll, nil)
}

func (f gatedFactory) Apps() apps.Interface { return apps.New(f, v1.NamespaceAll, nil) }

func (f gatedFactory) Autoscaling() autoscaling.Interface {
	return autoscaling.New(f, v1.NamespaceAll, nil)
}

func (f gatedFactory) Batch() batch.Interface { return batch.New(f, v1.NamespaceAll, nil) }

func (f gatedFactory) Certificates() certificates.Interface {
	return certificates.New(f, v1.NamespaceAll, nil)
}

func (f gatedFactory) Coordination() coordination.Interface {
	return coordination.New(f, v1.NamespaceAll, nil)
}

func (f gatedFactory) Core() core.Interface { return core.New(f, v1.NamespaceAll, nil) }

func (f gatedFactory) Discovery() discovery.Interface { return discovery.New(f, v1.NamespaceAll, nil) }

func (f gatedFactory) Events() events.Interface { return events.New(f, v1.NamespaceAll, nil) }

func (f gatedFactory) Extensions() extensions.Interface {
	return extensions.New(f, v1.NamespaceAll, nil)
}

func (f gatedFactory) Flowcontrol() flowcontrol.Interface {
	return flowcontrol.New(f, v1.NamespaceAll, nil)
}

func (f gatedFactory) Internal() apiserverinternal.Interface {
	return apiserverinternal.New(f, v1.NamespaceAll, nil)
}

func (f gatedFactory) Lifecycle() lifecycle.Interface { return lifecycle.New(f, v1.NamespaceAll, nil) }

func (f gatedFactory) Networking() networking.Interface {
	return networking.New(f, v1.NamespaceAll, nil)
}

func (f gatedFactory) Node() node.Interface { return node.New(f, v1.NamespaceAll, nil) }

func (f gatedFactory) Policy() policy.Interface { return policy.New(f, v1.NamespaceAll, nil) }

func (f gatedFactory) Rbac() rbac.Interface { return rbac.New(f, v1.NamespaceAll, nil) }

func (f gatedFactory) Resource() resource.Interface { return resource.New(f, v1.NamespaceAll, nil) }

func (f gatedFactory) Scheduling() scheduling.Interface {
	return scheduling.New(f, v1.NamespaceAll, nil)
}

func (f gatedFactory) Storage() storage.Interface { return storage.New(f, v1.NamespaceAll, nil) }

func (f gatedFactory) Storagemigration() storagemigration.Interface {
	return storagemigration.New(f, v1.NamespaceAll, nil)
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
