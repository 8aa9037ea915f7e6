package aggregator

import (
	"context"
	"errors"
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

	"byre/apiserver/delegation"
	"byre/apiserver/discovery"
	"byre/apiserver/endpoints"
	"byre/apiserver/health"
	"byre/apiserver/loopback"
	"byre/apiserver/routing"
)

// Server is a handler of APIServices and of what they claim.
type Server struct {
	services        *endpoints.API
	rejectRedirects bool
	customSynced    <-chan struct{}

	client    clientset.Interface
	factory   externalversions.SharedInformerFactory
	informers informers.SharedInformerFactory
	// slices has the EndpointSlices; it runs once there is a backend.
	slices informers.SharedInformerFactory

	certificate *dynamiccertificates.DynamicCertKeyPairContent
	meters      *meters
	follower    *follower
	registrar   *registrar

	// builtin has the paths of group versions that are served here from the start.
	builtin sets.Set[string]
	// started is closed when all parts of Run have been started.
	started chan struct{}
	// settled is closed when all that was claimed at the start is known, and
	// where to find who claims it.
	settled chan struct{}
	// discovered is closed when all of these were asked what they serve.
	discovered chan struct{}
}

var errNotStarted = errors.New("not finished")

// Stores says whether objects of a resource are kept here.
func (s *Server) Stores(gr schema.GroupResource) bool { return gr == apiServices }

// New makes a Server; requests for what it does not serve go on to delegate. It
// starts nothing.
func New(d delegation.Dependencies, o Options, delegate http.Handler) (*Server, error) {
	if err := validate(d); err != nil {
		return nil, err
	}
	services, err := newGroup(d, delegate)
	if err != nil {
		return nil, err
	}
	client, err := clientset.NewForConfig(d.Loopback)
	if err != nil {
		return nil, fmt.Errorf("aggregator: loopback client: %w", err)
	}
	s := &Server{
		services:        services,
		rejectRedirects: d.Backends.RejectRedirects,
		customSynced:    o.CustomSynced,
		client:          client,
		factory:         externalversions.NewSharedInformerFactoryWithOptions(client, resync, externalversions.WithTransform(loopback.StripManagedFields)),
		informers:       d.Informers,
		slices:          informers.NewSharedInformerFactoryWithOptions(d.Client, 0, informers.WithTransform(loopback.StripManagedFields)),
		registrar:       newRegistrar(d.Discovery),
		builtin:         builtinRoots(d.Discovery),
		started:         make(chan struct{}),
		settled:         make(chan struct{}),
		discovered:      make(chan struct{}),
	}
	if s.meters, err = newMeters(o.Metrics); err != nil {
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
	s.follower = newFollower(d, &routing.Resolver{
		Services:    s.informers.Core().V1().Services().Lister(),
		Slices:      slices,
		ToEndpoints: d.Backends.RouteToEndpoints,
		Self:        d.Backends.Self,
	}, s.meters, outbound{identity: s.certificate.CurrentCertKeyContent, dial: d.Backends.Dial, trace: d.Backends.Trace})
	s.certificate.AddListener(s.follower)
	return s, nil
}

func builtinRoots(registry *discovery.Registry) sets.Set[string] {
	all := sets.New[string]()
	for _, v := range registry.LocalVersions() {
		if v.Origin == discovery.BuiltIn {
			all.Insert("/apis/" + v.Group + "/" + v.Version)
		}
	}
	return all
}

// ServeHTTP sends a request on to whoever claims its path, and serves
// APIServices.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if !s.mayAnswer(req) {
		http.Error(w, unavailable.message, unavailable.code)
		return
	}
	if c := s.follower.claims.find(req.URL.Path); c != nil {
		s.proxyTo(w, req, c)
		return
	}
	s.services.ServeHTTP(w, req)
}

// mayAnswer waits until it is known who claims a request's path, and returns
// false if the request ends before. What is missing must not be a 404 while it
// may be there: clients draw conclusions from these.
func (s *Server) mayAnswer(req *http.Request) bool {
	select {
	case <-s.settled:
		return true
	default:
	}
	path := req.URL.Path
	if !strings.HasPrefix(path, "/apis/") || s.builtin.Has(rootOf(path)) {
		return true
	}
	select {
	case <-s.settled:
		return true
	case <-req.Context().Done():
		return false
	}
}

// Run follows the APIServices, tells whether they are available, and registers
// what is served here, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	parts, ctx := errgroup.WithContext(ctx)
	services := s.factory.Apiregistration().V1().APIServices()
	s.follower.ctx = ctx
	defer s.follower.running.Wait()
	heard, err := services.Informer().AddEventHandler(s.follower.handler())
	if err != nil {
		return fmt.Errorf("aggregator: %w", err)
	}
	available, err := localstatus.New(services, s.client.ApiregistrationV1(), s.meters.availability)
	if err != nil {
		return fmt.Errorf("aggregator: availability of what is served here: %w", err)
	}
	s.factory.StartWithContext(ctx)
	defer s.factory.Shutdown()
	parts.Go(func() error {
		s.certificate.Run(ctx, 1)
		return nil
	})
	parts.Go(func() error {
		available.Run(workers, ctx.Done())
		return nil
	})
	parts.Go(func() error { return s.runRegistrar(ctx, services) })
	parts.Go(func() error { return s.runRemote(ctx, services, heard.HasSynced) })
	close(s.started)
	return parts.Wait()
}

// resync is upstream's. Without one its controllers, which look at backends again
// every 30 s, would never notice that one has died.
const resync = 5 * time.Minute

// workers is how many APIServices upstream's controllers handle at a time.
const workers = 5

// runRegistrar waits until what is to be registered is known.
func (s *Server) runRegistrar(ctx context.Context, services registration.APIServiceInformer) error {
	if s.customSynced != nil {
		select {
		case <-ctx.Done():
			return nil
		case <-s.customSynced:
		}
	}
	return s.registrar.run(ctx, services, s.client.ApiregistrationV1())
}

// runRemote does what only backends need, as soon as there is one.
func (s *Server) runRemote(ctx context.Context, services registration.APIServiceInformer, heard cache.InformerSynced) error {
	if !cache.WaitForCacheSync(ctx.Done(), heard) {
		return nil
	}
	settle := sync.OnceFunc(func() { close(s.settled) })
	discovered := sync.OnceFunc(func() { close(s.discovered) })
	if s.follower.claims.empty() {
		settle()
		discovered()
	}
	select {
	case <-ctx.Done():
		return nil
	case <-s.follower.remote:
	}
	slices := s.slices.Discovery().V1().EndpointSlices()
	available, err := remote.New(services, s.informers.Core().V1().Services(), slices, s.client.ApiregistrationV1(),
		nil, s.certificate.CurrentCertKeyContent, s.follower.resolver, s.meters.availability)
	if err != nil {
		return fmt.Errorf("aggregator: availability of backends: %w", err)
	}
	s.slices.StartWithContext(ctx)
	defer s.slices.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), slices.Informer().HasSynced, s.informers.Core().V1().Services().Informer().HasSynced) {
		return nil
	}
	close(s.follower.located)
	settle()
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() {
		s.follower.asked(ctx)
		discovered()
	})
	available.Run(workers, ctx.Done())
	return nil
}

// Checks are the parts of a start, under upstream's names.
func (s *Server) Checks() []health.Checker {
	checks := health.PostStartHooks(s.started,
		"start-kube-aggregator-informers",
		"apiservice-status-local-available-controller", "apiservice-status-remote-available-controller",
		"kube-apiserver-autoregistration",
		// Documents of backends are merged into those of the one OpenAPI service.
		"apiservice-openapi-controller", "apiservice-openapiv3-controller")
	return append(checks,
		health.PostStartHook("apiservice-registration-controller", s.settled),
		health.PostStartHook("apiservice-discovery-controller", s.discovered),
		healthz.NamedCheck("autoregister-completion", s.registrar.ready))
}
