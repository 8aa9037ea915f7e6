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
	"byre/apiserver/discovery"
	"byre/apiserver/openapi"
	"byre/apiserver/routing"
)

// follower keeps what is claimed, and what discovery says of it, at what the
// APIServices say.
type follower struct {
	claims   claims
	registry *discovery.Registry
	openapi  *openapi.Service
	resolver *routing.Resolver
	meters   *meters
	outbound outbound

	// remote is closed when there is the first APIService of another server.
	remote     chan struct{}
	remoteOnce sync.Once
	// located is closed when it is known where Services are served.
	located chan struct{}

	// ctx and running are those of Run; the handler is not called before.
	ctx     context.Context
	running sync.WaitGroup

	mu        sync.Mutex
	services  map[string]*apiregistrationv1.APIService // those of other servers, by name
	claimed   map[string]*claim                        // the same
	documents map[string]documents                     // that OpenAPI was told, by the same
	backends  map[place]*backend                       // that claims lead to
}

func newFollower(d delegation.Dependencies, resolver *routing.Resolver, meters *meters, outbound outbound) *follower {
	return &follower{
		registry:  d.Discovery,
		openapi:   d.OpenAPI,
		resolver:  resolver,
		meters:    meters,
		outbound:  outbound,
		remote:    make(chan struct{}),
		located:   make(chan struct{}),
		services:  map[string]*apiregistrationv1.APIService{},
		claimed:   map[string]*claim{},
		documents: map[string]documents{},
		backends:  map[place]*backend{},
	}
}

// handler hears of the APIServices.
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
	// The group of APIServices themselves can't be given away.
	if service.Spec.Service == nil || service.Spec.Group == apiregistration.GroupName {
		f.drop(service.Name)
		return
	}
	f.remoteOnce.Do(func() { close(f.remote) })
	f.claim(service)
}

func (f *follower) onDelete(object any) {
	if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	if service, ok := object.(*apiregistrationv1.APIService); ok {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.drop(service.Name)
	}
}

// claim enters what a service claims. The caller holds mu.
func (f *follower) claim(service *apiregistrationv1.APIService) {
	at := placeOf(service)
	b := f.backends[at]
	if b == nil {
		b = newBackend(at, f.resolver, f.meters)
		b.renew(f.outbound, service)
		if err := b.current.Load().err; err != nil {
			klog.ErrorS(err, "Aggregated API server can't be connected to", "apiservice", service.Name, "service", at)
		}
		ctx, stop := context.WithCancel(f.ctx)
		b.stop = stop
		f.backends[at] = b
		f.running.Go(func() { b.run(ctx, f) })
	}
	if last := f.claimed[service.Name]; last != nil && last.backend != b && last.backend.sameService(at) {
		// Only how it is connected to has changed, as when its certificates are rotated.
		b.inherit(last.backend, last.gv)
	}
	c := newClaim(service, b)
	f.services[service.Name], f.claimed[service.Name] = service, c
	f.publish()
	f.show(c)
	b.refresh()
}

// drop takes back what a service claims. The caller holds mu.
func (f *follower) drop(name string) {
	c := f.claimed[name]
	if c == nil {
		return
	}
	delete(f.services, name)
	delete(f.claimed, name)
	// First, so that whoever is not sent on any more finds what is served here.
	f.registry.Remove(c.gv, discovery.Aggregated)
	f.publish()
	if _, told := f.documents[name]; told {
		delete(f.documents, name)
		f.openapi.Remove(sourceName(c))
	}
}

// publish shows requests what is claimed now, and gives up backends that nothing
// leads to any more. The caller holds mu.
func (f *follower) publish() {
	byRoot, used := map[string]*claim{}, map[place]*backend{}
	for _, c := range f.claimed {
		byRoot[c.root()] = c
		used[c.backend.place] = c.backend
	}
	f.claims.set(byRoot)
	for at, b := range f.backends {
		if used[at] == nil {
			b.stop()
		}
	}
	f.backends = used
}

// show enters a claim in discovery and OpenAPI as its backend described it. The
// caller holds mu.
func (f *follower) show(c *claim) {
	v, documents := c.backend.describe(c.gv)
	v.GroupPriority, v.Priority = c.groupPriority, c.priority
	if err := f.registry.Add(v); err != nil {
		klog.ErrorS(err, "Discovery of an aggregated API server is not complete", "apiservice", c.name)
	}
	if told := f.documents[c.name]; !told.same(documents, c.gv) {
		f.documents[c.name] = documents
		f.openapi.Set(sourceName(c), documents.source(c.gv))
	}
}

// sourceName is under what a claim is in the OpenAPI documents. It comes after
// those of this server, whose paths stay theirs.
func sourceName(c *claim) string { return "remote " + c.name }

// claimsOf returns what leads to a backend.
func (f *follower) claimsOf(b *backend) []*claim {
	f.mu.Lock()
	defer f.mu.Unlock()
	var of []*claim
	for _, c := range f.claimed {
		if c.backend == b {
			of = append(of, c)
		}
	}
	return of
}

// versionsOf returns the group versions that lead to a backend, but for some.
func (f *follower) versionsOf(b *backend, but ...schema.GroupVersion) []schema.GroupVersion {
	var gvs []schema.GroupVersion
	for _, c := range f.claimsOf(b) {
		if !slices.Contains(but, c.gv) {
			gvs = append(gvs, c.gv)
		}
	}
	return gvs
}

// changed shows what a backend has come to say of itself.
func (f *follower) changed(b *backend) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.claimed {
		if c.backend == b {
			f.show(c)
		}
	}
}

// asked waits until every backend that there is now was asked what it serves.
func (f *follower) asked(ctx context.Context) {
	f.mu.Lock()
	backends := slices.Collect(maps.Values(f.backends))
	f.mu.Unlock()
	for _, b := range backends {
		select {
		case <-b.asked:
		case <-ctx.Done():
			return
		}
	}
}

// Enqueue has all backends connected to with the certificate of now. It is
// upstream's dynamiccertificates.Listener.
func (f *follower) Enqueue() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, c := range f.claimed {
		c.backend.renew(f.outbound, f.services[name])
	}
}
