package aggregator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/kube-aggregator/pkg/client/informers/externalversions"
	registration "k8s.io/kube-aggregator/pkg/client/informers/externalversions/apiregistration/v1"
	localstatus "k8s.io/kube-aggregator/pkg/controllers/status/local"
	availability "k8s.io/kube-aggregator/pkg/controllers/status/metrics"
	"k8s.io/kube-aggregator/pkg/controllers/status/remote"
	generated "k8s.io/kube-aggregator/pkg/generated/openapi"
	apiservice "k8s.io/kube-aggregator/pkg/registry/apiservice/etcd"

	"byre/apiserver/handlers"
	"byre/apiserver/handlers/documents"
	"byre/apiserver/process"
	"byre/apiserver/process/pki"
	"byre/apiserver/query"
	"byre/sqlstore"
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

// Stores implements process.ChainServer.
func (s *Server) Stores(gr schema.GroupResource) (owner sqlstore.Owner, ok bool) {
	return sqlstore.BuiltIn, gr == apiServices
}

// New makes a Server; requests for what it does not serve go on to delegate. It
// starts nothing.
func New(d process.Dependencies, o Options, delegate http.Handler) (*Server, error) {
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
		factory: externalversions.NewSharedInformerFactoryWithOptions(client, resync,
			externalversions.WithTransform(process.StripManagedFields)),
		informers: d.Informers,
		slices: informers.NewSharedInformerFactoryWithOptions(d.Client, 0,
			informers.WithTransform(process.StripManagedFields)),
		registrar:    newRegistrar(d.Discovery),
		builtin:      builtinRoots(d.Discovery),
		started:      make(chan struct{}),
		routesSynced: make(chan struct{}),
		discovered:   make(chan struct{}),
	}
	if s.metrics, err = newMetrics(o.Metrics); err != nil {
		return nil, fmt.Errorf("aggregator: metrics: %w", err)
	}
	if s.certificate, err = dynamiccertificates.NewDynamicServingContentFromFiles("aggregator-proxy-cert",
		d.Backends.ProxyCert, d.Backends.ProxyKey); err != nil {
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

// ServeHTTP proxies requests that an APIService routes, and serves APIServices.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
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
	available, err := localstatus.New(services, s.client.ApiregistrationV1(), s.metrics.availability)
	if err != nil {
		return fmt.Errorf("aggregator: availability of what is served here: %w", err)
	}
	s.factory.StartWithContext(ctx)
	defer s.factory.Shutdown()
	parts.Go(func() error {
		pki.Follow(ctx, s.certificate, s.controller.transport.ProxyCert, s.controller.transport.ProxyKey)
		return nil
	})
	parts.Go(func() error {
		awaitServices(ctx, services)
		available.Run(workers, ctx.Done()) // also if ctx has ended: it stops what New started
		return nil
	})
	parts.Go(func() error { return s.runRegistrar(ctx, services) })
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
func (s *Server) runBackends(
	ctx context.Context, services registration.APIServiceInformer, registered cache.DoneChecker,
) error {
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
	available, err := remote.New(services, s.informers.Core().V1().Services(), slices, s.client.ApiregistrationV1(),
		s.controller.transport.dialHolder(), s.certificate.CurrentCertKeyContent, s.controller.resolver,
		s.metrics.availability)
	if err != nil {
		return fmt.Errorf("aggregator: availability of backends: %w", err)
	}
	s.slices.StartWithContext(ctx)
	defer s.slices.Shutdown()
	if !cache.WaitFor(ctx, "", slices.Informer().HasSyncedChecker(),
		s.informers.Core().V1().Services().Informer().HasSyncedChecker()) {
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
	available.Run(workers, ctx.Done())
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
	return append(checks,
		process.PostStartHook("apiservice-registration-controller", s.routesSynced),
		process.PostStartHook("apiservice-discovery-controller", s.discovered),
		healthz.NamedCheck("autoregister-completion", s.registrar.ready))
}

// Options are the dependencies of New beside those of every server. All are optional.
type Options struct {
	// CustomSynced is closed, by the server of custom resources, when Discovery lists
	// all custom resources that existed at the start; nil if there is no such server.
	CustomSynced <-chan struct{}
	// Metrics is where New registers the package's metrics; nil for nowhere.
	Metrics Registry
}

// apiServices is the resource of the APIServices. Its keys are those of a stock
// kube-apiserver.
var apiServices = schema.GroupResource{Group: apiregistration.GroupName, Resource: "apiservices"}

// newGroup makes the handler of the API group apiregistration.k8s.io, and the table of its objects.
func newGroup(d process.Dependencies, delegate http.Handler) (*handlers.API, *query.BuiltinTables, error) {
	scheme := handlers.NewScheme(install.Install)
	codecs := handlers.NewCodecs(scheme)
	getter := d.RESTOptions(scheme, codecs, apiServices)
	services := apiservice.NewREST(scheme, getter)
	version := apiregistrationv1.SchemeGroupVersion.Version
	group := handlers.Group{
		Name:     apiregistration.GroupName,
		Versions: []string{version},
		Storage: map[string]map[string]rest.Storage{
			version: {
				"apiservices":        services,
				"apiservices/status": apiservice.NewStatusREST(scheme, services),
			},
		},
		Scheme:         scheme,
		Codecs:         codecs,
		ParameterCodec: metav1.ParameterCodec,
	}
	api, schemas, err := d.ServeGroup("registration", group, generated.GetOpenAPIDefinitions, delegate)
	if err != nil {
		return nil, nil, err
	}
	tables, err := query.NewBuiltinTables([]handlers.Group{group}, getter.Lookup, schemas)
	return api, tables, err
}

// route is a group version that a backend serves, by an APIService. It is immutable.
type route struct {
	service   *apiregistrationv1.APIService
	name      string // of service
	gv        schema.GroupVersion
	available bool
	backend   *backend
}

func newRoute(service *apiregistrationv1.APIService, b *backend) *route {
	return &route{
		service:   service,
		name:      service.Name,
		gv:        schema.GroupVersion{Group: service.Spec.Group, Version: service.Spec.Version},
		available: helper.IsAPIServiceConditionTrue(service, apiregistrationv1.Available),
		backend:   b,
	}
}

// legacy is the name of the APIService of the core group, /api.
const legacy = "v1."

// root is the path that is routed, with all paths below it.
func (r *route) root() string {
	if r.name == legacy {
		return "/api"
	}
	return "/apis/" + r.gv.Group + "/" + r.gv.Version
}

// routes has the routes by root. Every set replaces all of them at once, so that a request
// never sees a mix of two sets. The zero value is empty.
type routes struct {
	byRoot atomic.Pointer[map[string]*route]
}

func (r *routes) set(byRoot map[string]*route) { r.byRoot.Store(&byRoot) }

func (r *routes) empty() bool {
	byRoot := r.byRoot.Load()
	return byRoot == nil || len(*byRoot) == 0
}

// find returns the route of a path, or nil.
func (r *routes) find(path string) *route {
	if r.empty() {
		return nil // the common case
	}
	return (*r.byRoot.Load())[rootOf(path)]
}

// rootOf returns the part of a path that could be a route's root.
func rootOf(path string) string {
	if path == "/api" || strings.HasPrefix(path, "/api/") {
		return "/api"
	}
	parts := strings.SplitN(path, "/", 5) // "", "apis", the group, the version and the rest
	if len(parts) < 5 {
		return path
	}
	return path[:len(path)-len(parts[4])-1]
}

// Registry registers the package's metrics. It is the part of component-base's registries
// that this package calls.
type Registry interface {
	Register(metrics.Registerable) error
	CustomRegister(metrics.StableCollector) error
}

// aggregatorMetrics are upstream's metrics under upstream's names, and a counter of
// proxied requests.
type aggregatorMetrics struct {
	availability *availability.Metrics
	requests     *metrics.CounterVec

	missingSAN, insecureSHA1 *metrics.Counter
}

// newMetrics makes the metrics and registers them with r unless that is nil.
func newMetrics(r Registry) (*aggregatorMetrics, error) {
	m := &aggregatorMetrics{
		availability: availability.New(),
		requests: metrics.NewCounterVec(&metrics.CounterOpts{
			Name: "byre_aggregator_requests_total",
			Help: "Requests proxied to aggregated API servers, by APIService and status code. The code is 0 where the client " +
				"got no answer, or took the connection over (an upgrade).",
			StabilityLevel: metrics.ALPHA,
		}, []string{"name", "code"}),
		missingSAN: x509Counter("x509_missing_san_total",
			"Counts the number of requests to servers missing SAN extension in their serving certificate OR the number of connection "+
				"failures due to the lack of x509 certificate SAN extension missing (either/or, based on the runtime environment)"),
		insecureSHA1: x509Counter("x509_insecure_sha1_total",
			"Counts the number of requests to servers with insecure SHA1 signatures in their serving certificate OR the number of "+
				"connection failures due to the insecure SHA1 signatures (either/or, based on the runtime environment)"),
	}
	if r == nil {
		return m, nil
	}
	for _, counter := range []**metrics.Counter{&m.missingSAN, &m.insecureSHA1} {
		err := r.Register(*counter)
		// Upstream's aggregator registers the counters in init, where a program links it.
		if registered := new(prometheus.AlreadyRegisteredError); errors.As(err, registered) {
			if existing, ok := registered.ExistingCollector.(*metrics.Counter); ok {
				*counter, err = existing, nil
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return m, errors.Join(r.Register(m.requests), m.availability.Register(r.Register, r.CustomRegister))
}

// x509Counter makes one of upstream's counters (k8s.io/kube-aggregator/pkg/apiserver/metrics.go).
func x509Counter(name, help string) *metrics.Counter {
	return metrics.NewCounter(&metrics.CounterOpts{
		Namespace:      "apiserver",
		Subsystem:      "kube_aggregator",
		Name:           name,
		Help:           help,
		StabilityLevel: metrics.ALPHA,
	})
}

func (m *aggregatorMetrics) countRequest(name string, code int) {
	m.requests.WithLabelValues(name, strconv.Itoa(code)).Inc()
}
