package aggregator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	clientset "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	informers "k8s.io/kube-aggregator/pkg/client/informers/externalversions/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"

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
	c.setPriority(service,
		documents.GroupPriority{Group: service.Spec.GroupPriorityMinimum, Version: service.Spec.VersionPriority})
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

// registrar registers an APIService for every group version that this server serves
// itself: for built-in ones at the start, as upstream does, and for those of custom
// resources whenever they change.
type registrar struct {
	registry   *documents.Discovery
	priorities map[schema.GroupVersion]documents.GroupPriority
	// changed receives a value after the registry has changed.
	changed chan struct{}
	// registered has the group versions of custom resources that upstream's controller
	// registers.
	registered sets.Set[schema.GroupVersion]

	mu sync.Mutex
	// missing has the APIServices of built-in group versions that were not available yet;
	// nil before run.
	missing sets.Set[string]
}

func newRegistrar(registry *documents.Discovery) *registrar {
	r := &registrar{
		registry:   registry,
		priorities: documents.GroupPriorities(),
		changed:    make(chan struct{}, 1),
		registered: sets.New[schema.GroupVersion](),
	}
	registry.AddObserver(func() {
		select {
		case r.changed <- struct{}{}:
		default:
		}
	})
	return r
}

// registerWorkers is how many APIServices upstream's controller processes at a time.
const registerWorkers = 5

// run registers APIServices until ctx ends. The caller calls it once the registry lists all
// custom resources: upstream's controller deletes the APIServices of group versions that the
// registry does not list.
func (r *registrar) run(
	ctx context.Context, services informers.APIServiceInformer, client clientset.APIServicesGetter,
) error {
	controller := autoregister.NewAutoRegisterController(services, client)
	r.setMissing(r.addBuiltIn(controller))
	registration, err := services.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    r.onAPIService,
		UpdateFunc: func(_, object any) { r.onAPIService(object) },
	})
	if err != nil {
		return fmt.Errorf("aggregator: %w", err)
	}
	defer func() {
		if err := services.Informer().RemoveEventHandler(registration); err != nil {
			klog.V(2).InfoS("Handler of APIServices was not removed", "err", err)
		}
	}()
	r.sync(controller)
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { controller.Run(registerWorkers, ctx.Done()) })
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.changed:
			r.sync(controller)
		}
	}
}

// addBuiltIn registers the built-in group versions and returns the names of their
// APIServices.
func (r *registrar) addBuiltIn(to autoregister.AutoAPIServiceRegistration) sets.Set[string] {
	names := sets.New[string]()
	for _, v := range r.registry.LocalVersions() {
		// A group version without a priority is not registered: at the next start upstream
		// could not tell its APIService from one that a custom resource has left.
		priority, ok := r.priorities[v.GroupVersion]
		if v.Origin != documents.BuiltIn || !ok {
			continue
		}
		service := apiService(v.GroupVersion, priority)
		names.Insert(service.Name)
		to.AddAPIServiceToSyncOnStart(service)
	}
	return names
}

// sync registers the group versions of custom resources, and removes those that are gone.
func (r *registrar) sync(with autoregister.AutoAPIServiceRegistration) {
	custom := sets.New[schema.GroupVersion]()
	for _, v := range r.registry.LocalVersions() {
		if v.Origin == documents.Custom {
			custom.Insert(v.GroupVersion)
		}
	}
	for gv := range custom.Difference(r.registered) {
		with.AddAPIServiceToSync(apiService(gv, documents.GroupPriority{Group: 1000, Version: 100}))
	}
	for gv := range r.registered.Difference(custom) {
		with.RemoveAPIServiceToSync(apiServiceName(gv))
	}
	r.registered = custom
}

func apiServiceName(gv schema.GroupVersion) string { return gv.Version + "." + gv.Group }

func apiService(gv schema.GroupVersion, at documents.GroupPriority) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: apiServiceName(gv)},
		Spec: apiregistrationv1.APIServiceSpec{
			Group:                gv.Group,
			Version:              gv.Version,
			GroupPriorityMinimum: at.Group,
			VersionPriority:      at.Version,
		},
	}
}

func (r *registrar) setMissing(names sets.Set[string]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing = names
}

// onAPIService notes that an APIService is available.
func (r *registrar) onAPIService(object any) {
	service, ok := object.(*apiregistrationv1.APIService)
	if ok && helper.IsAPIServiceConditionTrue(service, apiregistrationv1.Available) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.missing.Delete(service.Name)
	}
}

var errNotFinished = errors.New("not finished")

// ready is a health check that fails until every built-in group version has been
// available.
func (r *registrar) ready(*http.Request) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.missing == nil {
		return errNotFinished
	}
	if len(r.missing) > 0 {
		return fmt.Errorf("missing APIService: %v", sets.List(r.missing))
	}
	return nil
}
