package aggregator

import (
	"context"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"byre/apiserver/handlers/documents"
	"byre/apiserver/process"
)

// controller follows the APIServices. It keeps the routes, discovery and OpenAPI in line
// with them, and runs the backends that routes lead to.
type controller struct {
	routes    routes
	registry  *documents.Discovery
	openapi   *documents.OpenAPI
	resolver  *process.ServiceResolver
	transport *transportConfig

	// hasBackends is closed when the first APIService names a Service.
	hasBackends     chan struct{}
	hasBackendsOnce sync.Once
	// endpointsSynced is closed when the endpoints of Services are known.
	endpointsSynced chan struct{}

	// Run sets ctx before the handler is called, and waits for running.
	ctx     context.Context
	running sync.WaitGroup

	mu sync.Mutex
	// routed has the routes, and published the specs that OpenAPI has, by the name of an
	// APIService that names a Service.
	routed    map[string]*route
	published map[string]openAPISpecs
	backends  map[backendKey]*backend // that routes lead to
}

func newController(d process.Dependencies, resolver *process.ServiceResolver, transport *transportConfig) *controller {
	return &controller{
		registry:        d.Discovery,
		openapi:         d.OpenAPI,
		resolver:        resolver,
		transport:       transport,
		hasBackends:     make(chan struct{}),
		endpointsSynced: make(chan struct{}),
		routed:          map[string]*route{},
		published:       map[string]openAPISpecs{},
		backends:        map[backendKey]*backend{},
	}
}

// handler handles the informer's events.
func (c *controller) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    c.onChange,
		UpdateFunc: func(_, object any) { c.onChange(object) },
		DeleteFunc: c.onDelete,
	}
}

func (c *controller) onChange(object any) {
	service, ok := object.(*apiregistrationv1.APIService)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setPriority(service, documents.GroupPriority{Group: service.Spec.GroupPriorityMinimum, Version: service.Spec.VersionPriority})
	// No other server can serve the group of the APIServices themselves.
	if service.Spec.Service == nil || service.Spec.Group == apiregistration.GroupName {
		c.removeRoute(service.Name)
		return
	}
	c.hasBackendsOnce.Do(func() { close(c.hasBackends) })
	c.addRoute(service)
}

func (c *controller) onDelete(object any) {
	if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	if service, ok := object.(*apiregistrationv1.APIService); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.setPriority(service, documents.GroupPriority{})
		c.removeRoute(service.Name)
	}
}

// setPriority gives a group version of this server the priorities of its APIService, which a user
// may have set: the registrar leaves an APIService alone that is not labelled as its own.
func (c *controller) setPriority(service *apiregistrationv1.APIService, at documents.GroupPriority) {
	c.registry.SetPriority(schema.GroupVersion{Group: service.Spec.Group, Version: service.Spec.Version}, at)
}

// addRoute adds the route of an APIService, or replaces it. The caller holds mu.
func (c *controller) addRoute(service *apiregistrationv1.APIService) {
	key := backendKeyOf(service)
	b := c.backends[key]
	if b == nil {
		b = newBackend(key, c)
		if err := b.connect(c.transport, service); err != nil {
			klog.ErrorS(err, "Aggregated API server can't be connected to", "apiservice", service.Name, "service", key)
		}
		ctx, stop := context.WithCancel(c.ctx)
		b.stop = stop
		c.backends[key] = b
		c.running.Go(func() { b.run(ctx, c.endpointsSynced) })
	}
	if last := c.routed[service.Name]; last != nil && last.backend != b {
		b.inherit(last.backend, last.gv)
	}
	r := newRoute(service, b)
	c.routed[service.Name] = r
	c.publishRoutes()
	c.publishDocuments(r)
	b.requestRefresh()
}

// removeRoute removes the route of an APIService. The caller holds mu.
func (c *controller) removeRoute(name string) {
	r := c.routed[name]
	if r == nil {
		return
	}
	delete(c.routed, name)
	// Discovery goes first: a request that is no longer proxied finds the group version
	// as this server serves it.
	c.registry.Remove(r.gv, documents.Aggregated)
	c.publishRoutes()
	if _, ok := c.published[name]; ok {
		delete(c.published, name)
		c.openapi.Remove(sourceName(r))
	}
}

// publishRoutes makes requests see the current routes, and stops backends without any.
// The caller holds mu.
func (c *controller) publishRoutes() {
	byRoot, used := map[string]*route{}, map[backendKey]*backend{}
	for _, r := range c.routed {
		byRoot[r.root()] = r
		used[r.backend.key] = r.backend
	}
	c.routes.set(byRoot)
	for key, b := range c.backends {
		if used[key] == nil {
			b.stop()
		}
	}
	c.backends = used
}

// publishDocuments enters in discovery and OpenAPI what the backend of a route has
// fetched. The caller holds mu.
func (c *controller) publishDocuments(r *route) {
	v, specs := r.backend.describe(r.gv)
	v.GroupPriority, v.Priority = int(r.service.Spec.GroupPriorityMinimum), int(r.service.Spec.VersionPriority)
	if err := c.registry.Add(v); err != nil {
		klog.ErrorS(err, "Discovery of an aggregated API server is not complete", "apiservice", r.name)
	}
	if last := c.published[r.name]; !last.isSame(specs, r.gv) {
		c.published[r.name] = specs
		c.openapi.Set(sourceName(r), specs.source(r.gv))
	}
}

// sourceName is the name of a route's source in documents.OpenAPI. It sorts after the names
// of this server's own sources, which therefore keep their paths.
func sourceName(r *route) string { return "remote " + r.name }

// groupVersions returns the group versions whose routes lead to a backend, without the given
// ones.
func (c *controller) groupVersions(b *backend, without ...schema.GroupVersion) []schema.GroupVersion {
	c.mu.Lock()
	defer c.mu.Unlock()
	var gvs []schema.GroupVersion
	for _, r := range c.routed {
		if r.backend == b && !slices.Contains(without, r.gv) {
			gvs = append(gvs, r.gv)
		}
	}
	return gvs
}

// publishBackend publishes what a backend has fetched.
func (c *controller) publishBackend(b *backend) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.routed {
		if r.backend == b {
			c.publishDocuments(r)
		}
	}
}

// waitForDiscovery waits until discovery was fetched from every current backend.
func (c *controller) waitForDiscovery(ctx context.Context) {
	c.mu.Lock()
	backends := slices.Collect(maps.Values(c.backends))
	c.mu.Unlock()
	for _, b := range backends {
		select {
		case <-b.discovered:
		case <-ctx.Done():
			return
		}
	}
}

// Enqueue implements dynamiccertificates.Listener: the client certificate of this server
// has changed.
func (c *controller) Enqueue() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, r := range c.routed {
		if err := r.backend.connect(c.transport, r.service); err != nil {
			klog.ErrorS(err, "Aggregated API server can't be connected to", "apiservice", name, "service", r.backend.key)
		}
	}
}
