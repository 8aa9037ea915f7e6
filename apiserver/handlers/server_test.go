package handlers_test

import (
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericfeatures "k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	cliflag "k8s.io/component-base/cli/flag"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/features"
	generated "k8s.io/kubernetes/pkg/generated/openapi"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"byre/apiserver/apitest"
	"byre/apiserver/handlers"
	"byre/apiserver/handlers/documents"
	"byre/apiserver/handlers/managedfields"
	"byre/apiserver/registry"
	"byre/apiserver/storage"
	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// server is the built-in groups over a store in memory, served by two handlers: ours, which
// answers from bytes, and one that decodes all reads and leaves all writes to upstream's handlers.
type server struct {
	api             *handlers.API
	bytes, upstream *httptest.Server
	// groups and serving are what the server bytes serves; handler makes another one over
	// the same store.
	groups  []handlers.Group
	serving handlers.Serving
	feed    *watch.Feed
	handler func(handlers.Serving) http.Handler
}

// someone is the user of all requests.
var someone = &user.DefaultInfo{Name: "someone", Groups: []string{user.SystemPrivilegedGroup}}

// newServer serves until the test ends. wrap, if not nil, wraps the store's driver.
func newServer(t testing.TB, wrap func(sqlstore.Driver) sqlstore.Driver) *server {
	t.Helper()
	return newAdmittingServer(t, wrap, nil)
}

func newAdmittingServer(t testing.TB, wrap func(sqlstore.Driver) sqlstore.Driver, admit admission.Interface) *server {
	t.Helper()
	var driver sqlstore.Driver = storetest.NewModel()
	if wrap != nil {
		driver = wrap(driver)
	}
	store, feed := dbtest.RunStore(t, driver, watch.Options{})
	groups := newGroups(t, store, feed, nil)
	names, err := handlers.ModelNames(groups)
	if err != nil {
		t.Fatal(err)
	}
	serving := handlers.Serving{
		Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer(),
		Admission:  admit,
		TypeConverter: managedfields.NewTypeConverter(documents.NewModels("test", generated.GetOpenAPIDefinitions,
			legacyscheme.Scheme).Schemas(names...)),
		FieldSets:  managedfields.NewFieldSets(1 << 20),
		ParsedSets: managedfields.NewParsedSets(1 << 20),
	}
	s := &server{groups: groups, serving: serving, feed: feed}
	s.handler = func(serving handlers.Serving) http.Handler {
		s.api, err = handlers.New(handlers.Config{
			Groups:    groups,
			Serving:   serving,
			Discovery: documents.NewDiscovery("192.0.2.7:6443"),
		})
		if err != nil {
			t.Fatal(err)
		}
		return apitest.WithContext(s.api, someone)
	}
	serve := func(h http.Handler) *httptest.Server {
		server := httptest.NewServer(h)
		t.Cleanup(server.Close)
		return server
	}
	s.handler(handlers.DecodeReads(serving))
	s.upstream = serve(apitest.WithContext(s.api.UpstreamWrites(), someone))
	s.bytes = serve(s.handler(serving))
	return s
}

// call is a request of a test.
type call struct {
	method, path, body string
	header             map[string]string
}

// do sends c without a transport that compresses or decompresses.
func (c call) do(t testing.TB, to *httptest.Server) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), c.method, to.URL+c.path, strings.NewReader(c.body))
	if err != nil {
		t.Fatal(err)
	}
	if c.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, value := range c.header {
		req.Header.Set(name, value)
	}
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", c.method, c.path, err)
	}
	return resp
}

// reply is an answer without its body.
type reply struct {
	StatusCode int
	Header     http.Header
}

// answer sends c and returns the answer and its body.
func (c call) answer(t testing.TB, to *httptest.Server) (reply, string) {
	t.Helper()
	resp := c.do(t, to)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", c.method, c.path, err)
	}
	return reply{resp.StatusCode, resp.Header}, string(body)
}

// create posts an object, which must succeed.
func (s *server) create(t testing.TB, path, body string) {
	t.Helper()
	if resp, answer := (call{method: http.MethodPost, path: path, body: body}).answer(t,
		s.bytes); resp.StatusCode != http.StatusCreated {
		t.Fatalf("POST %s: %s", path, answer)
	}
}

func gunzip(t *testing.T, packed string) string {
	t.Helper()
	r, err := gzip.NewReader(strings.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// newGroups makes the built-in groups that a --runtime-config turns on.
func newGroups(
	t testing.TB, store *sqlstore.Store, feed *watch.Feed, runtimeConfig cliflag.ConfigurationMap,
) []handlers.Group {
	t.Helper()
	resources, err := registry.ParseRuntimeConfig(runtimeConfig)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := serviceaccount.JWTTokenGenerator("https://test.invalid", key)
	if err != nil {
		t.Fatal(err)
	}
	client, effective := fake.NewClientset(), compatibility.DefaultBuildEffectiveVersion()
	b, err := registry.New(registry.Config{
		RESTOptions: storage.NewRESTOptionsGetter(storage.Backend{Store: store, Feed: feed},
			storage.BuiltinResources(effective)),
		APIResourceConfigSource: resources,
		Client:                  client,
		Informers:               informers.NewSharedInformerFactory(client, 0),
		Authorizer:              authorizerfactory.NewAlwaysAllowAuthorizer(),
		Tokens:                  registry.TokenConfig{Issuer: issuer},
		Emulation: genericapiserver.ResourceExpirationEvaluatorOptions{
			CurrentVersion: effective.EmulationVersion(),
		},
		Services: registry.ServiceConfig{ClusterIPRange: registry.DefaultClusterIPRange(),
			NodePortRange: registry.DefaultNodePortRange()},
		Kubelet: registry.DefaultKubelet(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b.Groups()
}

// newEverything serves every built-in group and version without a database, as upstream
// serves them when it writes the release's documents: with --runtime-config=api/all=true
// and with the feature gates on that add resources or encodings.
func newEverything(t *testing.T) *handlers.API {
	t.Helper()
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, featuregatetesting.FeatureOverrides{
		genericfeatures.CBORServingAndStorage:    true,
		genericfeatures.OpenAPIEnums:             false,
		features.CompositePodGroup:               true,
		features.EvictionRequestAPI:              true,
		features.GenericWorkload:                 true,
		features.TopologyAwareWorkloadScheduling: true,
	})
	api, err := handlers.New(handlers.Config{
		Groups: newGroups(t, &sqlstore.Store{}, watch.New(nil, watch.Options{}),
			cliflag.ConfigurationMap{"api/all": "true"}),
		Discovery: documents.NewDiscovery("10.10.10.10:8050"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return api
}
