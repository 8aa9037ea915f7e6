package crd_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	byrediscovery "byre/apiserver/discovery"
	"byre/apiserver/endpoints"
	"byre/apiserver/loopback"
	"byre/apiserver/openapi"
	"byre/apiserver/storage"
	"byre/crd"
	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/sqlite"
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
	discovery   discovery.DiscoveryInterface
	store       *sqlstore.Store
}

// databases are the databases that what depends on the store is tested on.
var databases = []struct {
	name string
	open func(*testing.T) (driver sqlstore.Driver, shared bool)
}{
	{"sqlite", openSQLite},
	{"postgres", openPostgres},
}

func openPostgres(t *testing.T) (sqlstore.Driver, bool) {
	t.Helper()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	return connect(t, dsn), true
}

func connect(t *testing.T, dsn string) sqlstore.Driver {
	t.Helper()
	driver, err := postgres.Open(t.Context(), dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return driver
}

func openSQLite(t *testing.T) (sqlstore.Driver, bool) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "byre.db")
	if _, err := migrations.Up(t.Context(), "sqlite://"+path); err != nil {
		t.Fatal(err)
	}
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return driver, false
}

// onDatabases runs a test on each database.
func onDatabases(t *testing.T, test func(*testing.T, *server)) {
	t.Helper()
	for _, database := range databases {
		t.Run(database.name, func(t *testing.T) {
			driver, shared := database.open(t)
			test(t, start(t, driver, shared))
		})
	}
}

// newServer starts a server on SQLite.
func newServer(t *testing.T) *server {
	t.Helper()
	driver, shared := openSQLite(t)
	return start(t, driver, shared)
}

func start(t *testing.T, driver sqlstore.Driver, shared bool) *server {
	t.Helper()
	feed := watch.New(driver, watch.Options{SoleWriter: !shared})
	store := sqlstore.New(driver, sqlstore.Options{Publish: feed.Publish})
	transport := &loopback.Transport{}
	documents := openapi.NewService()
	s := &server{store: store, config: loopback.Config(transport), openapi: documents}
	var err error
	s.Server, err = crd.New(crd.Config{
		// The scheme of others must not get in the way.
		Storage:   storage.GetterConfig{Store: store, Feed: feed, Program: "test", Scheme: scheme.Scheme},
		Effective: compatibility.DefaultBuildEffectiveVersion(),
		Serving: endpoints.Serving{
			Authorizer:        authorizerfactory.NewAlwaysAllowAuthorizer(),
			MinRequestTimeout: time.Minute,
		},
		Discovery:       byrediscovery.NewRegistry("127.0.0.1:0"),
		OpenAPI:         documents,
		Build:           "test",
		Loopback:        s.config,
		ServiceResolver: webhook.NewDefaultServiceResolver(),
		Authentication:  webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, &rest.Config{}, noop.NewTracerProvider()),
	}, http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	s.handler = withContext(s.Server)
	transport.Serve(s.handler)
	s.definitions = clientset.NewForConfigOrDie(s.config)
	s.dynamic = dynamic.NewForConfigOrDie(s.config)
	s.discovery = discovery.NewDiscoveryClientForConfigOrDie(s.config)

	// The order of the stop is that of the program: what makes requests, the
	// requests, the feed, the store, the database.
	t.Cleanup(func() {
		if err := driver.Close(); err != nil {
			t.Error(err)
		}
	})
	run(t, "store", store.Run)
	run(t, "feed", feed.Run)
	t.Cleanup(func() {
		transport.Close()
		transport.Wait()
	})
	run(t, "crd", s.Run)
	select {
	case <-s.Synced():
	case <-time.After(time.Minute):
		t.Fatal("the definitions were not followed")
	}
	return s
}

// run runs a part of the server until the test ends.
func run(t *testing.T, name string, part func(context.Context) error) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- part(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
}

// withContext gives requests what the filters of the whole server would.
func withContext(next http.Handler) http.Handler {
	resolver := &request.RequestInfoFactory{
		APIPrefixes:          sets.NewString("api", "apis"),
		GrouplessAPIPrefixes: sets.NewString("api"),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, err := resolver.NewRequestInfo(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ctx := request.WithRequestInfo(req.Context(), info)
		ctx = request.WithUser(ctx, &user.DefaultInfo{Name: "tester", Groups: []string{user.SystemPrivilegedGroup}})
		ctx = request.WithReceivedTimestamp(ctx, time.Now())
		ctx = audit.WithAuditContext(ctx)
		ctx = warning.WithWarningRecorder(ctx, recorder{w})
		next.ServeHTTP(w, req.WithContext(ctx))
	})
}

// recorder sends warnings as headers.
type recorder struct{ w http.ResponseWriter }

func (r recorder) AddWarning(_, text string) { r.w.Header().Add("Warning", text) }

// do sends one request and returns the answer.
func (s *server) do(t *testing.T, method, path string, body string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	return do(t, s.handler, method, path, body, header...)
}
