package handlers_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsstorage "k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	apiservicestorage "k8s.io/kube-aggregator/pkg/registry/apiservice/etcd"

	"byre/apiserver/access/filters"
	"byre/apiserver/handlers"
	"byre/apiserver/handlers/documents"
	"byre/sqlstore"
	"byre/sqlstore/storetest"
	"byre/watch"
)

const (
	oneMap     = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one"},"data":{"k":"v"}}`
	deployment = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},` +
		`"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`
	deployments = "/apis/apps/v1/namespaces/first/deployments"
)

// TestVerbs_ServeOneObject sends one object through every verb, and another through the
// verbs of its scale.
func TestVerbs_ServeOneObject(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	for _, step := range []struct {
		method, path, contentType, body string
		status                          int
		want                            string // a regular expression of the body
	}{
		{"POST", configMaps, "", oneMap, 201, `"kind":"ConfigMap".*"name":"one"`},
		{"POST", configMaps, "", oneMap, 409, `"reason":"AlreadyExists"`},
		{"POST", configMaps + "?dryRun=All", "", `{"metadata":{"generateName":"g-"}}`, 201, `"name":"g-.....\"`},
		{"POST", configMaps + "?fieldValidation=Strict", "", `{"metadata":{"name":"x"},"dta":{}}`, 400,
			`unknown field \\"dta\\"`},
		{"POST", configMaps, "application/yaml", "metadata:\n  name: yaml\ndata:\n  k: v\n", 201, `"name":"yaml"`},
		{"GET", configMaps + "/one", "", "", 200, `"data":\{"k":"v"\}`},
		{"PUT", configMaps + "/one", "", strings.Replace(oneMap, `"v"`, `"w"`, 1), 200, `"data":\{"k":"w"\}`},
		{"PUT", configMaps + "/one", "", strings.Replace(oneMap, `"name":"one"`, `"name":"one","resourceVersion":"1"`, 1),
			409, `"reason":"Conflict"`},
		{"PUT", configMaps + "/two", "", oneMap, 400, `does not match the name on the URL`},
		{"PATCH", configMaps + "/one", "application/merge-patch+json", `{"data":{"k":null,"m":"1"}}`, 200,
			`"data":\{"m":"1"\}`},
		{"PATCH", configMaps + "/one", "application/json-patch+json", `[{"op":"add","path":"/data/j","value":"2"}]`, 200,
			`"data":\{"j":"2","m":"1"\}`},
		{"PATCH", configMaps + "/one", "application/strategic-merge-patch+json", `{"metadata":{"labels":{"a":"b"}}}`, 200,
			`"labels":\{"a":"b"\}`},
		{"PATCH", configMaps + "/one?fieldManager=me", "application/apply-patch+yaml", oneMap, 200,
			`"manager":"me","operation":"Apply"`},
		{"PATCH", configMaps + "/one?fieldManager=you", "application/apply-patch+yaml",
			strings.Replace(oneMap, `"v"`, `"w"`, 1), 409, `conflict with \\"me\\"`},
		{"PATCH", configMaps + "/one", "application/apply-patch+yaml", oneMap, 422, `fieldManager`},
		{"PATCH", configMaps + "/new?fieldManager=me", "application/apply-patch+yaml",
			strings.Replace(oneMap, "one", "new", 1), 201, `"name":"new"`},
		{"DELETE", configMaps + "/one?dryRun=All", "", "", 200, `"status":"Success"`},
		{"DELETE", configMaps + "/one", "", `{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"wrong"}}`, 409,
			`"reason":"Conflict"`},
		{"DELETE", configMaps + "/one", "", "", 200, `"status":"Success"`},
		{"DELETE", configMaps + "/one", "", "", 404, `"reason":"NotFound"`},
		{"DELETE", configMaps, "", "", 200, `"kind":"ConfigMapList"`},
		{"GET", "/api/v1/configmaps", "", "", 200, `"items":\[\]\}`},

		{"POST", deployments, "", deployment, 201, `"kind":"Deployment"`},
		{"GET", deployments + "/d/scale", "", "", 200, `"kind":"Scale","apiVersion":"autoscaling/v1".*"replicas":1`},
		{"PATCH", deployments + "/d/scale", "application/merge-patch+json", `{"spec":{"replicas":4}}`, 200, `"replicas":4`},
		{"PUT", deployments + "/d/status", "", strings.Replace(deployment, `"spec"`, `"status":{"replicas":4},"spec"`, 1),
			200, `"status":\{"replicas":4\}`},
		{"GET", deployments + "/d", "", "", 200, `"replicas":4`},
		{"POST", "/api/v1/namespaces/first/serviceaccounts", "", `{"metadata":{"name":"sa"}}`, 201, `"name":"sa"`},
		{"POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", "", `{}`, 201, `"username":"someone"`},
		{"POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "",
			`{"spec":{"nonResourceAttributes":{"path":"/","verb":"get"}}}`, 201, `"allowed":true`},
	} {
		name := fmt.Sprintf("%s %s", step.method, step.path)
		c := call{method: step.method, path: step.path, body: step.body, header: map[string]string{}}
		if step.contentType != "" {
			c.header["Content-Type"] = step.contentType
		}
		resp, body := c.answer(t, s.bytes)
		if resp.StatusCode != step.status || !regexp.MustCompile(step.want).MatchString(body) {
			t.Errorf("%s %s: %d, want %d and %s:\n%s", name, step.contentType, resp.StatusCode, step.status, step.want, body)
		}
	}
}

// status returns the Status of an error in kube-apiserver's form.
func status(code int, reason, message, details string) string {
	return fmt.Sprintf(
		`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":%q,"reason":%q,"details":%s,"code":%d}`+"\n",
		message, reason, details, code)
}

// TestRoutes_RefuseAsKubeAPIServer: paths and methods that no resource serves are refused
// with kube-apiserver's words.
func TestRoutes_RefuseAsKubeAPIServer(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	notFound := status(404, "NotFound", "the server could not find the requested resource", "{}")
	notAllowed := status(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", "{}")
	for _, test := range []struct {
		name, method, path string
		header             map[string]string
		status             int
		body               string
	}{
		{"unknown resource", "GET", "/api/v1/widgets", nil, 404, notFound},
		{"unknown version of a known group", "GET", "/apis/apps/v9/deployments", nil, 404, notFound},
		{"unknown core version", "GET", "/api/v9", nil, 404, notFound},
		{"below a resource", "GET", configMaps + "/a/b/c", nil, 404, notFound},
		{"unknown group", "GET", "/apis/widgets.example/v1/widgets", nil, 404, "404 page not found\n"},
		{"elsewhere", "GET", "/widgets", nil, 404, "404 page not found\n"},
		{"two slashes first", "GET", "//api/v1/pods", nil, 404, "404 page not found\n"},
		{"not a verb of an item", "POST", configMaps + "/one", nil, 405, notAllowed},
		{"not a verb of a list", "PUT", configMaps, nil, 405, notAllowed},
		{"no create across namespaces", "POST", "/api/v1/configmaps", nil, 405, notAllowed},
		{"head", "HEAD", configMaps, nil, 405, ""},
		{"unheard of", "PURGE", configMaps, nil, 405, notAllowed},
		{"unheard of, nowhere", "PURGE", "/api/v1/widgets", nil, 404, notFound},
		{"options", "OPTIONS", configMaps, nil, 405, notAllowed},
		{"discovery is read-only", "POST", "/apis/apps/v1", nil, 405, notAllowed},
		{"and so is that of the core", "DELETE", "/api", nil, 405, notAllowed},
		{"not a patch", "PATCH", configMaps + "/one", map[string]string{"Content-Type": "application/json"}, 415,
			status(415, "UnsupportedMediaType", "415: Unsupported Media Type", "{}")},
		{"a patch without a type", "PATCH", configMaps + "/one", map[string]string{"Content-Type": ""}, 415,
			status(415, "UnsupportedMediaType", "415: Unsupported Media Type", "{}")},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := call{method: test.method, path: test.path, header: test.header}
			resp, body := c.answer(t, s.bytes)
			if resp.StatusCode != test.status {
				t.Errorf("status %d, want %d", resp.StatusCode, test.status)
			}
			if diff := cmp.Diff(test.body, body); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
		})
	}
}

// TestNegotiation_NamesTheEncodingsThereAre: the refusal of an unsupported encoding lists
// the supported ones.
func TestNegotiation_NamesTheEncodingsThereAre(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	resp, body := call{method: http.MethodGet, path: configMaps,
		header: map[string]string{"Accept": "image/png"}}.answer(t, s.bytes)
	if resp.StatusCode != http.StatusNotAcceptable || !strings.Contains(body, "application/json") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// TestBody_IsLimited: the server reads the body of a write up to its limit.
func TestBody_IsLimited(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	body := fmt.Sprintf(`{"metadata":{"name":"big"},"data":{"k":%q}}`, strings.Repeat("x", 3<<20))
	resp, answer := call{method: http.MethodPost, path: configMaps, body: body}.answer(t, s.bytes)
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %s", resp.StatusCode, answer)
	}
}

// TestDeprecatedVersion_Warns: answers of a deprecated version have a warning.
func TestDeprecatedVersion_Warns(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	resp, _ := call{method: http.MethodGet, path: "/api/v1/namespaces/first/endpoints"}.answer(t, s.bytes)
	if got := resp.Header.Get("Warning"); !strings.Contains(got, "v1 Endpoints is deprecated in v1.33+") {
		t.Errorf("warning %q", got)
	}
	resp, _ = call{method: http.MethodGet, path: configMaps}.answer(t, s.bytes)
	if got := resp.Header.Get("Warning"); got != "" {
		t.Errorf("warning %q", got)
	}
}

// TestDiscovery_AnswersAnyMethod: discovery answers every method, as kube-aggregator's lists
// of groups do.
func TestDiscovery_AnswersAnyMethod(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	for _, path := range []string{"/apis", "/apis/", "/apis/apps"} {
		resp, body := call{method: http.MethodPut, path: path}.answer(t, s.bytes)
		if resp.StatusCode != http.StatusOK || !strings.Contains(body, `"apps/v1"`) {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
}

// Overriding is a storage that changes what its registry lists.
type Overriding struct{ *genericregistry.Store }

// List implements rest.Lister.
func (*Overriding) List(context.Context, *internalversion.ListOptions) (runtime.Object, error) {
	return nil, nil
}

// embedding has such a storage below it.
type embedding struct{ *Overriding }

// readOtherwise are the built-in resources whose reads are not those of a registry that they embed.
// Who adds one makes sure that answers from stored bytes are what upstream's storage would read.
var readOtherwise = map[string]string{
	"/v1 componentstatuses":      "decoded",   // asks the components, and stores nothing
	"/v1 namespaces":             "provided",  // has an unexported registry: TestNamespaces_ReadTheirRegistry
	"/v1 persistentvolumeclaims": "decorated", // defaults dataSource and dataSourceRef
	"/v1 services":               "decorated", // defaults the fields for two IP families
}

// byValue embeds a storage, and is no pointer, as the storage of package crd.
type byValue struct{ *apiextensionsstorage.REST }

// Reads go to the registry of a storage, past the storage itself. So no storage may have a Get,
// List or Watch of its own: it would not be called. Those that are read otherwise are listed.
func TestRegistry_ReadsAreNotOverridden(t *testing.T) {
	store := &genericregistry.Store{}
	bad := &Overriding{store}
	for _, storage := range []rest.Storage{bad, &embedding{bad}} {
		if got := fmt.Sprint(handlers.OverriddenReads(storage)); got != "[*handlers_test.Overriding.List]" {
			t.Fatalf("%T overrides %s", storage, got)
		}
	}
	storages := map[string]rest.Storage{
		"customresourcedefinitions": &apiextensionsstorage.REST{Store: store},
		"apiservices":               &apiservicestorage.REST{Store: store},
		"a value":                   byValue{&apiextensionsstorage.REST{Store: store}},
	}
	all := cliflag.ConfigurationMap{"api/all": "true"}
	for _, group := range newGroups(t, &sqlstore.Store{}, watch.New(nil, watch.Options{}), all) {
		for version, byPath := range group.Storage {
			for path, storage := range byPath {
				// A subresource is read by its own Get.
				if _, lists := storage.(rest.Lister); lists && !strings.Contains(path, "/") {
					storages[group.Name+"/"+version+" "+path] = storage
				}
			}
		}
	}
	if len(storages) < 60 {
		t.Errorf("there are only %d resources", len(storages))
	}
	otherwise := map[string]string{}
	for name, storage := range storages {
		if how := handlers.Reads(storage); how != "embedded" {
			otherwise[name] = how
		}
		if overridden := handlers.OverriddenReads(storage); len(overridden) > 0 {
			t.Errorf("%s: %v would not be called", name, overridden)
		}
	}
	if diff := cmp.Diff(readOtherwise, otherwise); diff != "" {
		t.Errorf("resources that are read otherwise (-listed +found):\n%s", diff)
	}
}

// A client that may send CBOR sends it to every group, those of definitions and APIServices too.
func TestNewCodecs_HaveCBORWithItsFeature(t *testing.T) {
	for _, isOn := range []bool{true, false} {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.CBORServingAndStorage, isOn)
		codecs := handlers.NewCodecs(handlers.NewScheme(func(*runtime.Scheme) {}))
		if _, has := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeCBOR); has != isOn {
			t.Errorf("with the feature %v there is CBOR: %v", isOn, has)
		}
	}
}

// FuzzPath: the route that serves a path serves the resource that RequestInfo, and with it
// authorization, derives from the path.
func FuzzPath(f *testing.F) {
	for _, path := range []string{
		"/api/v1/pods", "/api/v1/namespaces/ns/pods/name/log", "/api/v1/namespaces/ns/pods/name/proxy/a/../b",
		"/api/v1/namespaces/ns", "/api/v1/namespaces/ns/status",
		"/api/v1/namespaces/ns/finalize/x", "/api/v1/watch/namespaces/ns/secrets/name", "/api/v1/watch/namespaces/ns",
		"/api/v1/proxy/namespaces/ns/pods/name",
		"/apis/apps/v1/namespaces/ns/deployments/name/scale", "/apis/apps/v1/deployments/", "/api/v1//secrets",
		"/api//v1/secrets", "//api/v1/secrets", "/api/v1/secrets//",
		"/api/v1/namespaces//secrets", "/api/v1/namespaces/ns//secrets", "/api/v1/nodes/n/proxy/",
		"/api/v1/namespaces/../secrets", "/api/v1/namespaces/ns/secrets/a%2fb",
		"/API/v1/secrets", "/api/v1/namespaces/pods", "/api/v1/watch/watch/secrets",
		"/api/v1/namespaces/namespaces/namespaces", "/apis/apps/v1", "/api", "/", "",
	} {
		f.Add(path)
	}
	driver := storetest.NewModel()
	feed := watch.New(driver, watch.Options{})
	store := sqlstore.New(driver, sqlstore.Options{Publish: feed.Publish})
	api, err := handlers.New(handlers.Config{
		Groups:    newGroups(f, store, feed, nil),
		Serving:   handlers.Serving{Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer()},
		Discovery: documents.NewDiscovery("192.0.2.7:6443"),
	})
	if err != nil {
		f.Fatal(err)
	}
	resolver := filters.NewRequestInfoResolver()
	f.Fuzz(func(t *testing.T, path string) {
		pattern := api.Pattern(path)
		if pattern == "" {
			return
		}
		info, err := resolver.NewRequestInfo(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: path}})
		if err != nil {
			t.Fatal(err)
		}
		if want := meant(pattern, path); want != nil &&
			(!info.IsResourceRequest || info.APIGroup != want.APIGroup || info.APIVersion != want.APIVersion ||
				info.Namespace != want.Namespace || info.Resource != want.Resource || info.Subresource != want.Subresource ||
				info.Name != want.Name) {
			t.Errorf("%q is served by %s, and authorized as %+v", path, pattern, info)
		}
	})
}

// meant returns the resource that a route's pattern derives from a path; nil for a route of
// no resource.
func meant(pattern, path string) *request.RequestInfo {
	is, names := strings.Split(path, "/")[1:], strings.Split(pattern, "/")[1:]
	if len(names) < 2 {
		return nil
	}
	info := &request.RequestInfo{APIVersion: names[1]}
	depth := 2
	if names[0] == "apis" {
		if len(names) < 3 {
			return nil
		}
		info.APIGroup, info.APIVersion, depth = names[1], names[2], 3
	}
	is, names = is[depth:], names[depth:]
	if len(names) > 0 && names[0] == "watch" {
		is, names = is[1:], names[1:]
	}
	if len(names) == 0 {
		return nil
	}
	if len(names) > 1 && names[0] == "namespaces" {
		info.Namespace = is[1]
		if names[1] == "{namespace}" {
			is, names = is[2:], names[2:]
		}
	}
	info.Resource = names[0]
	if len(names) > 1 {
		info.Name = is[1]
	}
	if len(names) > 2 {
		info.Subresource = names[2]
	}
	return info
}
