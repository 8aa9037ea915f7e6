package crd_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/server/routine"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/webhook"
	clientdiscovery "k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"byre/apiserver/apitest"
	"byre/apiserver/handlers"
	discovery "byre/apiserver/handlers/documents"
	"byre/apiserver/process"

	"byre/apiserver/storage"
	"byre/crd"
	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// server is a definition server over a database of its own, with clients.
type server struct {
	*crd.Server
	handler     http.Handler
	openapi     http.Handler
	config      *rest.Config
	definitions clientset.Interface
	dynamic     dynamic.Interface
	discovery   clientdiscovery.DiscoveryInterface
	store       *sqlstore.Store
}

// onDatabases runs a test on each database.
func onDatabases(t *testing.T, test func(*testing.T, *server)) {
	t.Helper()
	for _, kind := range dbtest.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			test(t, start(t, kind.Open(t)))
		})
	}
}

func start(t testing.TB, driver sqlstore.Driver, adjust ...func(*process.Dependencies)) *server {
	t.Helper()
	s := newServer(t, driver, adjust...)
	s.run(t)
	return s
}

// newServer makes a server that is to be run.
func newServer(t testing.TB, driver sqlstore.Driver, adjust ...func(*process.Dependencies)) *server {
	t.Helper()
	// The servers stop in the program's order: the controllers, the requests, the feed, the
	// store, the database.
	t.Cleanup(func() {
		if err := driver.Close(); err != nil {
			t.Error(err)
		}
	})
	store, feed := dbtest.RunStore(t, driver, watch.Options{})
	transport := &process.LoopbackTransport{}
	documents := discovery.NewOpenAPI()
	s := &server{store: store, config: process.LoopbackConfig(transport), openapi: documents}
	var err error
	dependencies := process.Dependencies{
		Storage:          storage.Backend{Store: store, Feed: feed, Program: "test"},
		EffectiveVersion: compatibility.DefaultBuildEffectiveVersion(),
		Serving: handlers.Serving{
			Authorizer:        authorizerfactory.NewAlwaysAllowAuthorizer(),
			MinRequestTimeout: time.Hour, // no watch ends by its timeout on a slow machine
		},
		Discovery:             discovery.NewDiscovery("127.0.0.1:0"),
		OpenAPI:               documents,
		Build:                 "test",
		Loopback:              s.config,
		ServiceResolver:       webhook.NewDefaultServiceResolver(),
		WebhookAuthentication: webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, &rest.Config{}, noop.NewTracerProvider()),
	}
	for _, adjust := range adjust {
		adjust(&dependencies)
	}
	if s.Server, err = crd.New(dependencies, http.NotFoundHandler()); err != nil {
		t.Fatal(err)
	}
	s.handler = s.Server
	if utilfeature.DefaultFeatureGate.Enabled(features.APIServingWithRoutine) {
		s.handler = routine.WithRoutine(s.handler, func(_ *http.Request, info *request.RequestInfo) bool { return info.Verb == "watch" })
	}
	s.handler = apitest.WithContext(s.handler, &user.DefaultInfo{Name: "tester", Groups: []string{user.SystemPrivilegedGroup}})
	transport.Serve(s.handler)
	s.definitions = clientset.NewForConfigOrDie(s.config)
	s.dynamic = dynamic.NewForConfigOrDie(s.config)
	s.discovery = clientdiscovery.NewDiscoveryClientForConfigOrDie(s.config)

	t.Cleanup(func() {
		transport.Close()
		transport.Wait()
	})
	return s
}

// run runs the server until the test ends.
func (s *server) run(t testing.TB) {
	t.Helper()
	dbtest.Serve(t, "crd", s.Run)
	select {
	case <-s.Synced():
	case <-time.After(storetest.Patience):
		t.Fatal("the definitions were not synced")
	}
}

// do sends one request and returns the answer.
func (s *server) do(t testing.TB, method, path string, body string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	return do(t, s.handler, method, path, body, header...)
}
