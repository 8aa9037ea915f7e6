package controllers

import (
	"time"

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
