package crd_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	apiwatch "k8s.io/apimachinery/pkg/watch"
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
	"sigs.k8s.io/yaml"

	"byre/apiserver/apitest"
	"byre/apiserver/handlers"
	"byre/apiserver/handlers/documents"
	"byre/apiserver/process"
	"byre/apiserver/storage"
	"byre/crd"
	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// gatesVariable names the environment variable with the feature gates of a test process.
const gatesVariable = "CRD_TEST_FEATURE_GATES"

func TestMain(m *testing.M) {
	if err := utilfeature.DefaultMutableFeatureGate.Set(os.Getenv(gatesVariable)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(m.Run())
}

// TestAllFeatureGates_On runs the tests that may depend on feature gates with all of them
// on. Feature gates are process-wide, so the tests run in a process of their own.
func TestAllFeatureGates_On(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs many tests again")
	}
	if os.Getenv(gatesVariable) != "" {
		t.Skip("this is that process")
	}
	tests := []string{
		"TestInstance_FieldSelectorsAndWatches", "TestInstance_Tables", "TestInstance_Apply", "TestInstance_ReadFollows",
		"TestInstance_Invalid", "TestVersions_", "TestFinalizer_Watches", "TestStorageVersion_Watches",
		"TestUnreadable_",
	}
	test := exec.CommandContext(t.Context(), os.Args[0], "-test.v",
		"-test.run=^("+strings.Join(tests, "|")+")/^(sqlite)?$")
	test.Env = append(os.Environ(), gatesVariable+"=AllAlpha=true,AllBeta=true")
	out, err := test.CombinedOutput()
	if err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	for _, name := range tests {
		if !strings.Contains(string(out), "--- PASS: "+name) {
			t.Errorf("no test %s passed", name)
		}
	}
}

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
	openAPI := documents.NewOpenAPI()
	s := &server{store: store, config: process.LoopbackConfig(transport), openapi: openAPI}
	var err error
	dependencies := process.Dependencies{
		Storage:          storage.Backend{Store: store, Feed: feed, Program: "test"},
		EffectiveVersion: compatibility.DefaultBuildEffectiveVersion(),
		Serving: handlers.Serving{
			Authorizer:        authorizerfactory.NewAlwaysAllowAuthorizer(),
			MinRequestTimeout: time.Hour, // no watch ends by its timeout on a slow machine
		},
		Discovery:       documents.NewDiscovery("127.0.0.1:0"),
		OpenAPI:         openAPI,
		Build:           "test",
		Loopback:        s.config,
		ServiceResolver: webhook.NewDefaultServiceResolver(),
		WebhookAuthentication: webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, &rest.Config{},
			noop.NewTracerProvider()),
	}
	for _, adjust := range adjust {
		adjust(&dependencies)
	}
	if s.Server, err = crd.New(dependencies, http.NotFoundHandler()); err != nil {
		t.Fatal(err)
	}
	s.handler = s.Server
	if utilfeature.DefaultFeatureGate.Enabled(features.APIServingWithRoutine) {
		s.handler = routine.WithRoutine(s.handler, func(_ *http.Request, info *request.RequestInfo) bool {
			return info.Verb == "watch"
		})
	}
	s.handler = apitest.WithContext(s.handler,
		&user.DefaultInfo{Name: "tester", Groups: []string{user.SystemPrivilegedGroup}})
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

func do(t testing.TB, handler http.Handler, method, path, body string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, req)
	return w
}

// parse decodes a definition from YAML.
func parse(t testing.TB, text string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(text), crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

// object decodes an object from YAML.
func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	// With integers: a client that sends CBOR sends floating-point numbers as they are.
	if err := utiljson.Unmarshal(data, &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// define creates a definition and waits until it is established.
func (s *server) define(t testing.TB, text string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	return s.establish(t, parse(t, text))
}

func (s *server) establish(
	t testing.TB, crd *apiextensionsv1.CustomResourceDefinition,
) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd, err := s.definitions.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd,
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s.await(t, crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return crd != nil && apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
	})
}

// await watches a definition until wanted accepts it; nil stands for its absence.
func (s *server) await(
	t testing.TB, name string, wanted func(*apiextensionsv1.CustomResourceDefinition) bool,
) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	definitions, options := s.definitions.ApiextensionsV1().CustomResourceDefinitions(),
		metav1.SingleObject(metav1.ObjectMeta{Name: name})
	list, err := definitions.List(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	var last *apiextensionsv1.CustomResourceDefinition
	if len(list.Items) > 0 {
		last = &list.Items[0]
	}
	if wanted(last) {
		return last
	}
	options.ResourceVersion = list.ResourceVersion
	events, err := definitions.Watch(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		crd, ok := event.Object.(*apiextensionsv1.CustomResourceDefinition)
		if !ok {
			t.Fatalf("watch of %s: %v", name, event.Object)
		}
		last = crd
		if event.Type == apiwatch.Deleted {
			crd = nil
		}
		if wanted(crd) {
			return crd
		}
	}
	t.Fatalf("%s did not reach the wanted state: %+v", name, last)
	return nil
}

func gone(crd *apiextensionsv1.CustomResourceDefinition) bool { return crd == nil }

var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

const widgetDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: widgets.example.com
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}"}
spec:
  group: example.com
  scope: Namespaced
  names:
    plural: widgets
    singular: widget
    kind: Widget
    listKind: WidgetList
    shortNames: [wd]
    categories: [all]
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale:
        specReplicasPath: .spec.replicas
        statusReplicasPath: .status.replicas
        labelSelectorPath: .status.selector
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    - {name: Replicas, type: integer, jsonPath: .spec.replicas}
    selectableFields:
    - jsonPath: .spec.color
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [size]
            properties:
              size: {type: integer, minimum: 1, maximum: 10}
              replicas: {type: integer, default: 1}
              color: {type: string, enum: [red, green, blue], default: red}
              note: {type: string, nullable: true}
              port: {x-kubernetes-int-or-string: true}
              free: {type: object, x-kubernetes-preserve-unknown-fields: true}
              tags: {type: array, items: {type: string}, x-kubernetes-list-type: set}
              parts:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items:
                  type: object
                  required: [name]
                  properties:
                    name: {type: string}
                    weight: {type: integer}
              template:
                type: object
                x-kubernetes-embedded-resource: true
                x-kubernetes-preserve-unknown-fields: true
            x-kubernetes-validations:
            - rule: "!has(self.replicas) || self.replicas <= self.size"
              message: more replicas than size
            - rule: "self.size >= oldSelf.size"
              messageExpression: "oldSelf.size > 5 ? 'a big size may not shrink' : 'size may not shrink'"
              fieldPath: .size
          status:
            type: object
            properties:
              replicas: {type: integer}
              selector: {type: string}
              phase: {type: string}
`
