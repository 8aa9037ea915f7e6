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

	"byre/apiserver/delegation"
	"byre/apiserver/handlers/discovery"
	"byre/apiserver/handlers/openapi"
	"byre/apiserver/process/routing"
)

// follower follows the APIServices. It keeps the claims, discovery and OpenAPI in line
// with them, and runs the backends that claims lead to.
type follower struct {
	claims    claims
	registry  *discovery.Registry
	openapi   *openapi.Service
	resolver  *routing.Resolver
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
	// services, claimed and published are by the name of an APIService that names a
	// Service.
	services map[string]*apiregistrationv1.APIService
	claimed  map[string]*claim
	// published has the specs that OpenAPI has.
	published map[string]openAPISpecs
	backends  map[backendKey]*backend // that claims lead to
}

func newFollower(d delegation.Dependencies, resolver *routing.Resolver, transport *transportConfig) *follower {
	return &follower{
		registry:        d.Discovery,
		openapi:         d.OpenAPI,
		resolver:        resolver,
		transport:       transport,
		hasBackends:     make(chan struct{}),
		endpointsSynced: make(chan struct{}),
		services:        map[string]*apiregistrationv1.APIService{},
		claimed:         map[string]*claim{},
		published:       map[string]openAPISpecs{},
		backends:        map[backendKey]*backend{},
	}
}

// handler handles the informer's events.
func (f *follower) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    f.onChange,
		UpdateFunc: func(_, object any) { f.onChange(object) },
		DeleteFunc: f.onDelete,
	}
}

func (f *follower) onChange(object any) {
	service, ok := object.(*apiregistrationv1.APIService)
	if !ok {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.place(service, discovery.Priority{Group: service.Spec.GroupPriorityMinimum, Version: service.Spec.VersionPriority})
	// No other server can claim the group of the APIServices themselves.
	if service.Spec.Service == nil || service.Spec.Group == apiregistration.GroupName {
		f.removeClaim(service.Name)
		return
	}
	f.hasBackendsOnce.Do(func() { close(f.hasBackends) })
	f.addClaim(service)
}

func (f *follower) onDelete(object any) {
	if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	if service, ok := object.(*apiregistrationv1.APIService); ok {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.place(service, discovery.Priority{})
		f.removeClaim(service.Name)
	}
}

// place gives a group version of this server the priorities of its APIService, which a user
// may have set: the registrar leaves an APIService alone that is not labelled as its own.
func (f *follower) place(service *apiregistrationv1.APIService, at discovery.Priority) {
	f.registry.Place(schema.GroupVersion{Group: service.Spec.Group, Version: service.Spec.Version}, at)
}

// addClaim adds the claim of an APIService, or replaces it. The caller holds mu.
func (f *follower) addClaim(service *apiregistrationv1.APIService) {
	key := backendKeyOf(service)
	b := f.backends[key]
	if b == nil {
		b = newBackend(key, f.resolver, f)
		if err := b.connect(f.transport, service); err != nil {
			klog.ErrorS(err, "Aggregated API server can't be connected to", "apiservice", service.Name, "service", key)
		}
		ctx, stop := context.WithCancel(f.ctx)
		b.stop = stop
		f.backends[key] = b
		f.running.Go(func() { b.run(ctx, f.endpointsSynced) })
	}
	if last := f.claimed[service.Name]; last != nil && last.backend != b && last.backend.key.isSameService(key) {
		// Only the CA bundle has changed, as when certificates are rotated.
		b.inherit(last.backend, last.gv)
	}
	c := newClaim(service, b)
	f.services[service.Name], f.claimed[service.Name] = service, c
	f.publishClaims()
	f.publishDocuments(c)
	b.requestRefresh()
}

// removeClaim removes the claim of an APIService. The caller holds mu.
func (f *follower) removeClaim(name string) {
	c := f.claimed[name]
	if c == nil {
		return
	}
	delete(f.services, name)
	delete(f.claimed, name)
	// Discovery goes first: a request that is no longer proxied finds the group version
	// as this server serves it.
	f.registry.Remove(c.gv, discovery.Aggregated)
	f.publishClaims()
	if _, ok := f.published[name]; ok {
		delete(f.published, name)
		f.openapi.Remove(sourceName(c))
	}
}

// publishClaims makes requests see the current claims, and stops backends without any.
// The caller holds mu.
func (f *follower) publishClaims() {
	byRoot, used := map[string]*claim{}, map[backendKey]*backend{}
	for _, c := range f.claimed {
		byRoot[c.root()] = c
		used[c.backend.key] = c.backend
	}
	f.claims.set(byRoot)
	for key, b := range f.backends {
		if used[key] == nil {
			b.stop()
		}
	}
	f.backends = used
}

// publishDocuments enters in discovery and OpenAPI what the backend of a claim has
// fetched. The caller holds mu.
func (f *follower) publishDocuments(c *claim) {
	v, specs := c.backend.describe(c.gv)
	v.GroupPriority, v.Priority = c.groupPriority, c.priority
	if err := f.registry.Add(v); err != nil {
		klog.ErrorS(err, "Discovery of an aggregated API server is not complete", "apiservice", c.name)
	}
	if last := f.published[c.name]; !last.isSame(specs, c.gv) {
		f.published[c.name] = specs
		f.openapi.Set(sourceName(c), specs.source(c.gv))
	}
}

// sourceName is the name of a claim's source in openapi.Service. It sorts after the names
// of this server's own sources, which therefore keep their paths.
func sourceName(c *claim) string { return "remote " + c.name }

// groupVersions implements backendClaims.
func (f *follower) groupVersions(b *backend, without ...schema.GroupVersion) []schema.GroupVersion {
	f.mu.Lock()
	defer f.mu.Unlock()
	var gvs []schema.GroupVersion
	for _, c := range f.claimed {
		if c.backend == b && !slices.Contains(without, c.gv) {
			gvs = append(gvs, c.gv)
		}
	}
	return gvs
}

// publishBackend implements backendClaims.
func (f *follower) publishBackend(b *backend) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.claimed {
		if c.backend == b {
			f.publishDocuments(c)
		}
	}
}

// waitForDiscovery waits until discovery was fetched from every current backend.
func (f *follower) waitForDiscovery(ctx context.Context) {
	f.mu.Lock()
	backends := slices.Collect(maps.Values(f.backends))
	f.mu.Unlock()
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
func (f *follower) Enqueue() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, c := range f.claimed {
		if err := c.backend.connect(f.transport, f.services[name]); err != nil {
			klog.ErrorS(err, "Aggregated API server can't be connected to", "apiservice", name, "service", c.backend.key)
		}
	}
}
