package aggregator_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-base/metrics"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	registration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"byre/aggregator"
	"byre/apiserver/apitest"
	"byre/apiserver/handlers"
	"byre/apiserver/handlers/documents"
	"byre/apiserver/process"
	"byre/apiserver/storage"
	"byre/sqlstore"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// server is an aggregator without a delegation target, over a database of its own, and an
// HTTP server in front of it for clients.
type server struct {
	*aggregator.Server
	front *httptest.Server
	// services is the client of APIServices; cluster is the fake client that holds Services
	// and their EndpointSlices.
	services registration.APIServiceInterface
	cluster  *fake.Clientset
	watched  sync.Map // see recordWatches
	registry *documents.Discovery
	metrics  metrics.KubeRegistry
	// frontProxyCA signs the server's client certificate; certificate and key are the files
	// of that certificate.
	frontProxyCA     *authority
	certificate, key string
	// stop ends Run and all that it needs, and waits for them.
	stop func()
}

// tester is the user of all requests through the front.
var tester = &user.DefaultInfo{
	Name: "tess", UID: "t-1", Groups: []string{"testers", "system:authenticated"},
	Extra: map[string][]string{"scopes": {"a", "b"}, "example.com/Mixed Case": {"c"}},
}

type option func(*process.Dependencies, *aggregator.Options)

// start starts a server over a store in memory.
func start(t testing.TB, options ...option) *server {
	t.Helper()
	return startOn(t, storetest.NewModel(), options...)
}

func startOn(t testing.TB, driver sqlstore.Driver, options ...option) *server {
	t.Helper()
	feed := watch.New(driver, watch.Options{})
	store := sqlstore.New(driver, sqlstore.Options{Publish: feed.Publish})
	transport := &process.LoopbackTransport{}
	s := &server{
		cluster:      fake.NewClientset(),
		registry:     documents.NewDiscovery("127.0.0.1:0"),
		metrics:      metrics.NewKubeRegistry(),
		frontProxyCA: newAuthority(t, "front-proxy-ca"),
	}
	s.recordWatches()
	s.certificate, s.key = filepath.Join(t.TempDir(), "proxy.crt"), filepath.Join(t.TempDir(), "proxy.key")
	s.newCertificate(t, "front-proxy-client")
	shared := informers.NewSharedInformerFactory(s.cluster, 0)
	documents := documents.NewOpenAPI()
	dependencies := process.Dependencies{
		Storage:          storage.Backend{Store: store, Feed: feed, Program: "test"},
		EffectiveVersion: compatibility.DefaultBuildEffectiveVersion(),
		Serving: handlers.Serving{
			Authorizer:        authorizerfactory.NewAlwaysAllowAuthorizer(),
			MinRequestTimeout: time.Minute,
		},
		Discovery: s.registry,
		OpenAPI:   documents,
		Build:     "test",
		Loopback:  process.LoopbackConfig(transport),
		Client:    s.cluster,
		Informers: shared,
		Backends: process.Backends{
			ProxyCert:        s.certificate,
			ProxyKey:         s.key,
			RouteToEndpoints: true,
			RejectRedirects:  true,
		},
	}
	own := aggregator.Options{Metrics: s.metrics}
	for _, set := range options {
		set(&dependencies, &own)
	}
	var err error
	next := http.NewServeMux()
	next.Handle("/openapi/", documents)
	next.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not routed", http.StatusNotFound) })
	if s.Server, err = aggregator.New(dependencies, own, next); err != nil {
		t.Fatal(err)
	}
	handler := apitest.WithContext(s.Server, tester)
	transport.Serve(handler)
	s.services = registration.NewForConfigOrDie(dependencies.Loopback).APIServices()
	s.front = httptest.NewServer(handler)

	var parts stack
	s.stop = sync.OnceFunc(parts.stop)
	t.Cleanup(s.stop)
	parts.push(func() {
		if err := driver.Close(); err != nil {
			t.Error(err)
		}
	})
	parts.run(t, "store", store.Run)
	parts.run(t, "feed", feed.Run)
	parts.push(func() {
		transport.Close()
		transport.Wait()
	})
	parts.run(t, "services", func(ctx context.Context) error {
		shared.Start(ctx.Done())
		<-ctx.Done()
		shared.Shutdown()
		return nil
	})
	parts.run(t, "aggregator", s.Run)
	parts.push(s.front.Close)
	s.awaitWatch(t, "services")
	return s
}

// recordWatches has the fake client record in watched which resources are watched.
func (s *server) recordWatches() {
	s.cluster.PrependWatchReactor("*", func(action clienttesting.Action) (bool, apiwatch.Interface, error) {
		w, err := s.cluster.Tracker().Watch(action.GetResource(), action.GetNamespace())
		s.watched.Store(action.GetResource().Resource, true)
		return true, w, err
	})
}

// awaitWatch waits until the server watches a resource of the fake client. The fake client
// has no revisions: an informer would never see what is created between its list and its
// watch.
func (s *server) awaitWatch(t testing.TB, resource string) {
	t.Helper()
	storetest.Eventually(t, resource+" are watched", func() bool {
		_, ok := s.watched.Load(resource)
		return ok
	})
}

// stack is a list of functions that stop what was started, the last one first.
type stack []func()

func (s *stack) push(stop func()) { *s = append(*s, stop) }

func (s *stack) stop() {
	for i := len(*s) - 1; i >= 0; i-- {
		(*s)[i]()
	}
}

func (s *stack) run(t testing.TB, name string, part func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- part(ctx) }()
	s.push(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
}

// newCertificate writes the client certificate that the server shows to backends.
func (s *server) newCertificate(t testing.TB, name string) {
	t.Helper()
	cert, key := s.frontProxyCA.issue(t, name)
	for path, text := range map[string][]byte{s.key: key, s.certificate: cert} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// condition waits until the condition Available of an APIService has that status and
// reason, and returns its message.
func (s *server) condition(t testing.TB, name string, status apiregistrationv1.ConditionStatus, reason string) string {
	t.Helper()
	var last *apiregistrationv1.APIServiceCondition
	storetest.EventuallyDone(t, "condition of "+name, func(ctx context.Context) (bool, error) {
		service, err := s.services.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, ignoreNotFound(err)
		}
		last = helper.GetAPIServiceConditionByType(service, apiregistrationv1.Available)
		return last != nil && last.Status == status && last.Reason == reason, nil
	})
	return last.Message
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// TestMain checks that no goroutine outlives the servers of the tests. They run with a proxy in the environment, which
// nobody reaches, and which is for all requests but those to backends.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"HTTPS_PROXY": "http://192.0.2.1:1", "NO_PROXY": namespace + ".svc"} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}
