package aggregator

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/kube-aggregator/pkg/client/informers/externalversions"
	registration "k8s.io/kube-aggregator/pkg/client/informers/externalversions/apiregistration/v1"
	localstatus "k8s.io/kube-aggregator/pkg/controllers/status/local"
	"k8s.io/kube-aggregator/pkg/controllers/status/remote"

	"byre/apiserver/handlers"
	"byre/apiserver/handlers/documents"
	"byre/apiserver/process"

	"byre/apiserver/process/pki"

	"byre/apiserver/query"
)

// Server is an http.Handler of APIServices and of the requests that they route.
type Server struct {
	// Builtin has the table of APIServices.
	*query.BuiltinTables
	services     *handlers.API
	customSynced <-chan struct{}

	client    clientset.Interface
	factory   externalversions.SharedInformerFactory
	informers informers.SharedInformerFactory
	// slices has the EndpointSlices. It is started when there is a backend.
	slices informers.SharedInformerFactory

	certificate *dynamiccertificates.DynamicCertKeyPairContent
	metrics     *aggregatorMetrics
	controller  *controller
	registrar   *registrar
	// writers gets what changes something; nil unless this server only reads.
	writers *writers

	// builtin has the paths of the built-in group versions.
	builtin sets.Set[string]
	// started is closed when all parts of Run have been started.
	started chan struct{}
	// routesSynced is closed when the routes that existed at the start are known, and the
	// endpoints of their Services.
	routesSynced chan struct{}
	// discovered is closed when discovery was fetched from all backends of these routes.
	discovered chan struct{}
}

// Stores tells whether this server stores the objects of a resource.
func (s *Server) Stores(gr schema.GroupResource) bool { return gr == apiServices }

// New makes a Server; requests for what it does not serve go on to delegate. It
// starts nothing.
func New(d process.Dependencies, o Options, delegate http.Handler) (*Server, error) {
	if err := validate(d); err != nil {
		return nil, err
	}
	services, tables, err := newGroup(d, delegate)
	if err != nil {
		return nil, err
	}
	client, err := clientset.NewForConfig(d.Loopback)
	if err != nil {
		return nil, fmt.Errorf("aggregator: loopback client: %w", err)
	}
	s := &Server{
		BuiltinTables: tables,
		services:      services,
		customSynced:  o.CustomSynced,
		client:        client,
		factory:       externalversions.NewSharedInformerFactoryWithOptions(client, resync, externalversions.WithTransform(process.StripManagedFields)),
		informers:     d.Informers,
		slices:        informers.NewSharedInformerFactoryWithOptions(d.Client, 0, informers.WithTransform(process.StripManagedFields)),
		registrar:     newRegistrar(d.Discovery),
		builtin:       builtinRoots(d.Discovery),
		started:       make(chan struct{}),
		routesSynced:  make(chan struct{}),
		discovered:    make(chan struct{}),
	}
	if s.metrics, err = newMetrics(o.Metrics); err != nil {
		return nil, fmt.Errorf("aggregator: metrics: %w", err)
	}
	if s.certificate, err = dynamiccertificates.NewDynamicServingContentFromFiles("aggregator-proxy-cert", d.Backends.ProxyCert, d.Backends.ProxyKey); err != nil {
		return nil, fmt.Errorf("aggregator: client certificate: %w", err)
	}
	slices, err := proxy.NewEndpointSliceIndexerGetter(s.slices.Discovery().V1().EndpointSlices())
	if err != nil {
		return nil, fmt.Errorf("aggregator: %w", err)
	}
	s.informers.Core().V1().Services().Informer() // started with the rest of the factory
	resolver := &process.ServiceResolver{
		Services:    s.informers.Core().V1().Services().Lister(),
		Slices:      slices,
		ToEndpoints: d.Backends.RouteToEndpoints,
		Self:        d.Backends.Self,
	}
	s.controller = newController(d, resolver, &transportConfig{
		Backends:    d.Backends,
		certificate: s.certificate.CurrentCertKeyContent,
		metrics:     s.metrics,
		buffers:     &bufferPool{},
	})
	s.certificate.AddListener(s.controller)
	if d.Writers != nil {
		s.writers = newWriters(d, s.controller.transport)
		s.certificate.AddListener(s.writers)
	}
	return s, nil
}

func builtinRoots(registry *documents.Discovery) sets.Set[string] {
	all := sets.New[string]()
	for _, v := range registry.LocalVersions() {
		if v.Origin == documents.BuiltIn {
			all.Insert("/apis/" + v.Group + "/" + v.Version)
		}
	}
	return all
}

// ServeHTTP proxies requests that an APIService routes, and serves APIServices. A server that only reads
// forwards what changes something.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if s.writers != nil && s.writers.takes(req) {
		s.writers.forward(w, req)
		return
	}
	if !s.waitForRoutes(req) {
		http.Error(w, unavailable.message, unavailable.code)
		return
	}
	if r := s.controller.routes.find(req.URL.Path); r != nil {
		proxyRequest(w, req, r, s.metrics)
		return
	}
	s.services.ServeHTTP(w, req)
}

// waitForRoutes waits until it is known which APIService routes a request's path, and
// returns false if the request ends before.
//
// Invariant: a path that an APIService routes is never answered with 404 by this server.
// Right after the start the routes are not known yet. Controllers conclude from a 404 that
// a resource does not exist, and the garbage collector deletes its dependents.
func (s *Server) waitForRoutes(req *http.Request) bool {
	select {
	case <-s.routesSynced:
		return true
	default:
	}
	path := req.URL.Path
	if !strings.HasPrefix(path, "/apis/") || s.builtin.Has(rootOf(path)) {
		return true
	}
	select {
	case <-s.routesSynced:
		return true
	case <-req.Context().Done():
		return false
	}
}

// Run follows the APIServices, keeps their condition Available, and registers the group
// versions that this server serves, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	parts, ctx := errgroup.WithContext(ctx)
	services := s.factory.Apiregistration().V1().APIServices()
	s.controller.ctx = ctx
	defer s.controller.running.Wait()
	registered, err := services.Informer().AddEventHandler(s.controller.handler())
	if err != nil {
		return fmt.Errorf("aggregator: %w", err)
	}
	if s.writers == nil { // the servers that write keep the APIServices
		available, err := localstatus.New(services, s.client.ApiregistrationV1(), s.metrics.availability)
		if err != nil {
			return fmt.Errorf("aggregator: availability of what is served here: %w", err)
		}
		parts.Go(func() error {
			awaitServices(ctx, services)
			available.Run(workers, ctx.Done()) // also if ctx has ended: it stops what New started
			return nil
		})
		parts.Go(func() error { return s.runRegistrar(ctx, services) })
	}
	s.factory.StartWithContext(ctx)
	defer s.factory.Shutdown()
	parts.Go(func() error {
		pki.Follow(ctx, s.certificate, s.controller.transport.ProxyCert, s.controller.transport.ProxyKey)
		return nil
	})
	parts.Go(func() error { return s.runBackends(ctx, services, registered.HasSyncedChecker()) })
	close(s.started)
	return parts.Wait()
}

// awaitServices waits until the existing APIServices are known, and returns false if ctx ends before.
// Upstream's controllers wait too, but look every 0.1 s.
func awaitServices(ctx context.Context, services registration.APIServiceInformer) bool {
	return cache.WaitFor(ctx, "", services.Informer().HasSyncedChecker())
}

// resync is upstream's value. Upstream's controllers check a backend again only when its
// APIService is updated or resynced: without a resync they would not notice that a backend
// has died.
const resync = 5 * time.Minute

// workers is how many APIServices upstream's controllers process at a time.
const workers = 5

// runRegistrar runs the registrar when all custom resources are known.
func (s *Server) runRegistrar(ctx context.Context, services registration.APIServiceInformer) error {
	if s.customSynced != nil {
		select {
		case <-ctx.Done():
			return nil
		case <-s.customSynced:
		}
	}
	if !awaitServices(ctx, services) {
		return nil
	}
	return s.registrar.run(ctx, services, s.client.ApiregistrationV1())
}

// runBackends runs what only backends need, as soon as there is one.
func (s *Server) runBackends(ctx context.Context, services registration.APIServiceInformer, registered cache.DoneChecker) error {
	if !cache.WaitFor(ctx, "", registered) {
		return nil
	}
	routesSynced := sync.OnceFunc(func() { close(s.routesSynced) })
	discovered := sync.OnceFunc(func() { close(s.discovered) })
	if s.controller.routes.empty() {
		routesSynced()
		discovered()
	}
	select {
	case <-ctx.Done():
		return nil
	case <-s.controller.hasBackends:
	}
	slices := s.slices.Discovery().V1().EndpointSlices()
	slices.Informer()
	run := func(_ int, stop <-chan struct{}) { <-stop }
	if s.writers == nil {
		available, err := remote.New(services, s.informers.Core().V1().Services(), slices, s.client.ApiregistrationV1(),
			s.controller.transport.dialHolder(), s.certificate.CurrentCertKeyContent, s.controller.resolver, s.metrics.availability)
		if err != nil {
			return fmt.Errorf("aggregator: availability of backends: %w", err)
		}
		run = available.Run
	}
	s.slices.StartWithContext(ctx)
	defer s.slices.Shutdown()
	if !cache.WaitFor(ctx, "", slices.Informer().HasSyncedChecker(), s.informers.Core().V1().Services().Informer().HasSyncedChecker()) {
		return nil
	}
	close(s.controller.endpointsSynced)
	routesSynced()
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() {
		s.controller.waitForDiscovery(ctx)
		discovered()
	})
	run(workers, ctx.Done())
	return nil
}

// Checks are the readiness checks, under upstream's names.
func (s *Server) Checks() []process.HealthChecker {
	checks := process.PostStartHooks(s.started,
		"start-kube-aggregator-informers",
		"apiservice-status-local-available-controller", "apiservice-status-remote-available-controller",
		"kube-apiserver-autoregistration",
		// documents.OpenAPI merges the documents of backends: no controller of its own starts.
		"apiservice-openapi-controller", "apiservice-openapiv3-controller")
	checks = append(checks,
		process.PostStartHook("apiservice-registration-controller", s.routesSynced),
		process.PostStartHook("apiservice-discovery-controller", s.discovered))
	if s.writers == nil {
		checks = append(checks, healthz.NamedCheck("autoregister-completion", s.registrar.ready))
	}
	return checks
}
