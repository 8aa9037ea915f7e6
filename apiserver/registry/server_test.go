package registry_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	generated "k8s.io/kubernetes/pkg/generated/openapi"

	"byre/apiserver/apitest"
	"byre/apiserver/handlers"
	"byre/apiserver/handlers/documents"
	"byre/apiserver/handlers/managedfields"

	"byre/apiserver/process"
	"byre/apiserver/registry"

	"byre/apiserver/bootstrap"
	"byre/sqlstore"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// server is the built-in groups behind real routes over a store in memory, without
// authentication (a header names the user) and without admission.
type server struct {
	client    kubernetes.Interface
	informers informers.SharedInformerFactory
	driver    sqlstore.Driver
	builtin   *registry.Builtin
	config    *rest.Config
	// api is the handler that the clients' requests go to.
	api http.Handler
	// storeErr is what the readiness check of the store returns.
	storeErr error
}

var (
	clusterIPs = net.IPNet{IP: net.IPv4(10, 9, 0, 0).To4(), Mask: net.CIDRMask(24, 32)}
	nodePorts  = utilnet.PortRange{Base: 30000, Size: 100}
)

// start serves until the test ends, with everything bootstrapped. adjust sets what tests
// vary.
func start(t *testing.T, adjust ...func(*registry.Config)) *server {
	t.Helper()
	s := &server{driver: storetest.NewModel()}
	feed := watch.New(s.driver, watch.Options{})
	store := sqlstore.New(s.driver, sqlstore.Options{Publish: feed.Publish})
	transport := &process.LoopbackTransport{}
	s.config = process.LoopbackConfig(transport)
	s.config.WarningHandler = rest.NoWarnings{}
	s.client = kubernetes.NewForConfigOrDie(s.config)
	factory := informers.NewSharedInformerFactoryWithOptions(s.client, 0, informers.WithCustomResyncConfig(registry.AllocatorResync()))
	s.informers = factory
	config := registry.Config{
		RESTOptions:             newGetter(store, feed),
		APIResourceConfigSource: registry.DefaultAPIResourceConfigSource(),
		Emulation:               thisRelease(),
		Client:                  s.client,
		Informers:               factory,
		EndpointSlices:          slicesOf{s.client},
		Authenticator:           authenticator.RequestFunc(knownToken),
		Authorizer:              authorizer.AuthorizerFunc(noEscalation),
		RuleResolver:            oneRule{},
		Tokens:                  registry.TokenConfig{Issuer: newIssuer(t)},
		APIAudiences:            authenticator.Audiences{"https://test.invalid"},
		Services:                registry.ServiceConfig{ClusterIPRange: clusterIPs, NodePortRange: nodePorts},
		EventTTL:                time.Hour,
		Kubelet:                 registry.DefaultKubelet(),
		ProxyTransport:          &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, //nolint:gosec // a test's own server
		StoreReady:              func(context.Context) error { return s.storeErr },
		InProcess:               []string{"scheduler"},
	}
	for _, set := range adjust {
		set(&config)
	}
	var err error
	if s.builtin, err = registry.New(config); err != nil {
		t.Fatal(err)
	}
	s.api = s.handler(t)
	transport.Serve(s.api)

	ctx, cancel := context.WithCancel(context.Background())
	var data, work sync.WaitGroup
	dataCtx, stopData := context.WithCancel(context.Background())
	data.Go(func() { _ = feed.Run(dataCtx) })
	data.Go(func() { _ = store.Run(dataCtx) })
	factory.Start(ctx.Done())
	work.Go(func() {
		if err := s.builtin.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		work.Wait()
		transport.Close()
		transport.Wait()
		factory.Shutdown()
		stopData()
		data.Wait()
	})
	s.bootstrap(t)
	select {
	case <-s.builtin.Repaired():
	case <-time.After(time.Minute):
		t.Fatal("allocations aren't repaired")
	}
	return s
}

// slicesOf finds EndpointSlices through the API.
type slicesOf struct{ client kubernetes.Interface }

func (s slicesOf) GetEndpointSlices(namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
	list, err := s.client.DiscoveryV1().EndpointSlices(namespace).List(context.Background(), metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + service,
	})
	if err != nil {
		return nil, err
	}
	var all []*discoveryv1.EndpointSlice
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all, nil
}

// bootstrap creates what a start of the program creates.
func (s *server) bootstrap(t *testing.T) {
	t.Helper()
	b, err := bootstrap.New(bootstrap.Config{
		Client:       s.client,
		Informers:    s.informers,
		ServiceCIDRs: []net.IPNet{clusterIPs},
		Service:      bootstrap.Service{ClusterIP: net.IPv4(10, 9, 0, 1), AdvertiseAddress: net.IPv4(192, 0, 2, 7), AdvertisePort: 6443},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.informers.Start(t.Context().Done())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := b.Ensure(ctx); err != nil {
		for _, check := range b.Checks() {
			t.Logf("%s: %v", check.Name(), check.Check(nil))
		}
		t.Fatal(err)
	}
}

// handler is the API behind a filter that adds what upstream's handlers read from a
// request's context.
func (s *server) handler(t *testing.T) http.Handler {
	t.Helper()
	groups := s.builtin.Groups()
	names, err := handlers.ModelNames(groups)
	if err != nil {
		t.Fatal(err)
	}
	models := documents.NewModels("test", generated.GetOpenAPIDefinitions, legacyscheme.Scheme)
	api, err := handlers.New(handlers.Config{
		Groups: groups,
		Serving: handlers.Serving{
			Authorizer:    authorizer.AuthorizerFunc(noEscalation),
			TypeConverter: managedfields.NewTypeConverter(models.Schemas(names...)),
		},
		Discovery: documents.NewDiscovery("192.0.2.7:6443"),
		NotFound:  http.NotFoundHandler(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return apitest.WithContext(asUser(api), &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}})
}

// userHeader names the user of a request; without it the user is the server itself.
const userHeader = "X-Test-User"

func asUser(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if name := req.Header.Get(userHeader); name != "" {
			who := &user.DefaultInfo{Name: name, Groups: []string{user.AllAuthenticated}}
			req = req.WithContext(request.WithUser(req.Context(), who))
		}
		h.ServeHTTP(w, req)
	})
}

// as returns a client of another user.
func (s *server) as(name string) kubernetes.Interface {
	config := rest.CopyConfig(s.config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			req = req.Clone(req.Context())
			req.Header.Set(userHeader, name)
			return next.RoundTrip(req)
		})
	})
	return kubernetes.NewForConfigOrDie(config)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }

// noEscalation allows everything but escalate, bind and impersonate.
func noEscalation(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if (a.GetVerb() == "escalate" || a.GetVerb() == "bind") && a.GetUser().GetName() != user.APIServerUser {
		return authorizer.DecisionDeny, "not even you", nil
	}
	return authorizer.DecisionAllow, "", nil
}

// knownToken authenticates the token "good" as jane.
func knownToken(req *http.Request) (*authenticator.Response, bool, error) {
	if !strings.HasSuffix(req.Header.Get("Authorization"), " good") {
		return nil, false, nil
	}
	audiences, _ := authenticator.AudiencesFrom(req.Context())
	return &authenticator.Response{User: &user.DefaultInfo{Name: "jane"}, Audiences: audiences}, true, nil
}

// oneRule resolves the rules of every user to one rule.
type oneRule struct{}

func (oneRule) RulesFor(context.Context, user.Info, string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return []authorizer.ResourceRuleInfo{&authorizer.DefaultResourceRuleInfo{Verbs: []string{"get"}, Resources: []string{"widgets"}}}, nil, false, nil
}
