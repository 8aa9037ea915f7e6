package crd_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// crontabDefinition has a storage version, and an older version with another name for the
// same field.
const crontabDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: crontabs.example.com
spec:
  group: example.com
  scope: Namespaced
  names: {plural: crontabs, singular: crontab, kind: CronTab, listKind: CronTabList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              schedule: {type: string}
              zone: {type: string, default: UTC}
  - name: v1beta1
    served: true
    storage: false
    deprecated: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              schedule: {type: string}
              cron: {type: string}
              image: {type: string, default: none}
`

func crontabPath(version string) string {
	return "/apis/example.com/" + version + "/namespaces/default/crontabs"
}

func crontab(version, name, spec string) string {
	return `{"apiVersion":"example.com/` + version + `","kind":"CronTab","metadata":{"name":"` + name + `"},"spec":` +
		spec + `}`
}

func TestVersions_WithoutConversion(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		s.define(t, crontabDefinition)
		w := s.do(t, http.MethodPost, crontabPath("v1beta1"), crontab("v1beta1", "a", `{"schedule":"* *","cron":"x"}`))
		if w.Code != http.StatusCreated {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		if got := w.Header().Get(
			"Warning"); got != `299 - "example.com/v1beta1 CronTab is deprecated; use example.com/v1 CronTab"` {
			t.Errorf("warning: %q", got)
		}
		// A field that the storage version does not have is not stored, and so the answer
		// does not have it either. An object is defaulted by its storage version before it
		// is converted.
		old := map[string]any{"schedule": "* *"}
		if diff := cmp.Diff(old, spec(t, w.Body.Bytes())); diff != "" {
			t.Errorf("create (-want +got):\n%s", diff)
		}
		for version, want := range map[string]map[string]any{
			"v1beta1": old,
			"v1":      {"schedule": "* *", "zone": "UTC"},
		} {
			path := crontabPath(version)
			for _, path := range []string{path + "/a", path + "/a" + decoded} {
				w := s.do(t, http.MethodGet, path, "")
				if diff := cmp.Diff(want, spec(t, w.Body.Bytes())); diff != "" {
					t.Errorf("GET %s (-want +got):\n%s", path, diff)
				}
			}
			resource := schema.GroupVersionResource{Group: "example.com", Version: version, Resource: "crontabs"}
			list, err := s.dynamic.Resource(resource).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := list.Items[0].GetAPIVersion(); got != "example.com/"+version {
				t.Errorf("listed in %s as %s", version, got)
			}
			events, err := s.dynamic.Resource(resource).Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
			if err != nil {
				t.Fatal(err)
			}
			event := <-events.ResultChan()
			if got := event.Object.(*unstructured.Unstructured).GetAPIVersion(); got != "example.com/"+version {
				t.Errorf("watched in %s as %s", version, got)
			}
			events.Stop()
		}
	})
}

// converter is a conversion webhook: v1beta1's cron is v1's schedule.
type converter struct {
	*httptest.Server
	// calls counts the webhook's calls, and objects the objects in them.
	calls, objects atomic.Int32
	// refuse names an object. The webhook fails to convert every request that contains it.
	refuse atomic.Pointer[string]
	// spoil changes the webhook's answers.
	spoil atomic.Pointer[func(*apiextensionsv1.ConversionResponse)]
}

func newConverter(t *testing.T) *converter {
	t.Helper()
	c := &converter{}
	c.Server = httptest.NewTLSServer(http.HandlerFunc(c.convert))
	t.Cleanup(c.Close)
	return c
}

func (c *converter) convert(w http.ResponseWriter, req *http.Request) {
	c.calls.Add(1)
	var review apiextensionsv1.ConversionReview
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &apiextensionsv1.ConversionResponse{
		UID:    review.Request.UID,
		Result: metav1.Status{Status: metav1.StatusSuccess},
	}
	c.objects.Add(int32(len(review.Request.Objects)))
	for _, raw := range review.Request.Objects {
		var u unstructured.Unstructured
		if err := json.Unmarshal(raw.Raw, &u.Object); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if name := c.refuse.Load(); name != nil && u.GetName() == *name {
			review.Response.Result = metav1.Status{Status: metav1.StatusFailure, Message: "refused"}
		}
		from, to := "cron", "schedule"
		if strings.HasSuffix(review.Request.DesiredAPIVersion, "v1beta1") {
			from, to = to, from
		}
		if content, ok := u.Object["spec"].(map[string]any); ok && content[from] != nil {
			content[to] = content[from]
			delete(content, from)
		}
		u.SetAPIVersion(review.Request.DesiredAPIVersion)
		review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Object: &u})
	}
	if spoil := c.spoil.Load(); spoil != nil {
		(*spoil)(review.Response)
	}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // a client that disconnected asks again
}

// defineConverted creates a definition of crontabs that a webhook converts.
func (s *server) defineConverted(t *testing.T, c *converter) {
	t.Helper()
	crd := parse(t, crontabDefinition)
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ConversionReviewVersions: []string{"v1"},
			ClientConfig: &apiextensionsv1.WebhookClientConfig{
				URL:      new(c.URL + "/convert"),
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate().Raw}),
			},
		},
	}
	s.establish(t, crd)
}

func TestVersions_ConvertedByWebhook(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		c := newConverter(t)
		s.defineConverted(t, c)
		w := s.do(t, http.MethodPost, crontabPath("v1beta1"), crontab("v1beta1", "a", `{"cron":"* *"}`))
		if w.Code != http.StatusCreated {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		for version, want := range map[string]map[string]any{
			"v1beta1": {"cron": "* *"},
			"v1":      {"schedule": "* *", "zone": "UTC"},
		} {
			got := spec(t, s.do(t, http.MethodGet, crontabPath(version)+"/a", "").Body.Bytes())
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("in %s (-want +got):\n%s", version, diff)
			}
		}
		before := c.calls.Load()
		s.do(t, http.MethodGet, crontabPath("v1")+"/a", "")
		if c.calls.Load() != before {
			t.Error("the webhook was asked about the version that is stored")
		}
	})
}

func TestConversion_BadAnswersAreRefused(t *testing.T) {
	t.Parallel()
	onDatabases(t, testBadConversions)
}

func testBadConversions(t *testing.T, s *server) {
	c := newConverter(t)
	s.defineConverted(t, c)
	if w := s.do(t, http.MethodPost, crontabPath("v1"),
		crontab("v1", "a", `{"schedule":"* *"}`)); w.Code != http.StatusCreated {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	stored := s.do(t, http.MethodGet, crontabPath("v1")+"/a", "").Body.String()
	edit := func(change func(*unstructured.Unstructured)) func(*apiextensionsv1.ConversionResponse) {
		return func(r *apiextensionsv1.ConversionResponse) {
			for i := range r.ConvertedObjects {
				change(r.ConvertedObjects[i].Object.(*unstructured.Unstructured))
			}
		}
	}
	for _, test := range []struct {
		name    string
		spoil   func(*apiextensionsv1.ConversionResponse)
		message string
	}{
		{"failure", func(r *apiextensionsv1.ConversionResponse) {
			r.Result = metav1.Status{Status: metav1.StatusFailure, Message: "no such zone"}
		}, "no such zone"},
		{"uid", func(r *apiextensionsv1.ConversionResponse) { r.UID = "another" }, `expected response.uid=`},
		{"number", func(r *apiextensionsv1.ConversionResponse) {
			r.ConvertedObjects = nil
		}, "returned 0 objects, expected 1"},
		{"version", edit(func(u *unstructured.Unstructured) { u.SetAPIVersion("example.com/v1") }), "invalid groupVersion"},
		{"kind", edit(func(u *unstructured.Unstructured) { u.SetKind("Other") }), "invalid kind"},
		{"name", edit(func(u *unstructured.Unstructured) { u.SetName("b") }), "name"},
		{"identity", edit(func(u *unstructured.Unstructured) { u.SetUID("b") }), "must have the same UID"},
		{"metadata", edit(func(u *unstructured.Unstructured) { u.Object["metadata"] = 1 }), "metadata"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c.spoil.Store(&test.spoil)
			defer c.spoil.Store(nil)
			for _, request := range [][3]string{
				{http.MethodGet, crontabPath("v1beta1") + "/a", ""},
				{http.MethodPut, crontabPath("v1beta1") + "/a", crontab("v1beta1", "a", `{"cron":"changed"}`)},
			} {
				w := s.do(t, request[0], request[1], request[2])
				if w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "conversion webhook") ||
					!strings.Contains(w.Body.String(), test.message) {
					t.Errorf("%s: %d %s", request[0], w.Code, w.Body)
				}
			}
			if got := s.do(t, http.MethodGet, crontabPath("v1")+"/a", "").Body.String(); got != stored {
				t.Errorf("what is stored became %s", got)
			}
		})
	}
}

// storeLast makes the second version the storage version.
func storeLast(crd *apiextensionsv1.CustomResourceDefinition) {
	crd.Spec.Versions[0].Storage, crd.Spec.Versions[1].Storage = false, true
}

// TestStorageVersion_ChangeKeepsObjects: objects that were stored in the earlier storage
// version can be read.
func TestStorageVersion_ChangeKeepsObjects(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		s.define(t, crontabDefinition)
		s.do(t, http.MethodPost, crontabPath("v1"), crontab("v1", "a", `{"schedule":"* *"}`))
		updated := s.change(t, "crontabs.example.com", storeLast)
		if diff := cmp.Diff([]string{"v1", "v1beta1"}, updated.Status.StoredVersions); diff != "" {
			t.Errorf("storedVersions (-want +got):\n%s", diff)
		}
		for version, want := range map[string]map[string]any{
			"v1beta1": {"schedule": "* *"},
			"v1":      {"schedule": "* *", "zone": "UTC"},
		} {
			for _, path := range []string{crontabPath(version) + "/a", crontabPath(version) + "/a" + decoded} {
				if diff := cmp.Diff(want, spec(t, s.do(t, http.MethodGet, path, "").Body.Bytes())); diff != "" {
					t.Errorf("GET %s (-want +got):\n%s", path, diff)
				}
			}
		}
	})
}

// TestStorageVersion_WatchesFollowAChange: watches in every version get a change from
// before the storage version changed and one from after.
func TestStorageVersion_WatchesFollowAChange(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		s.defineConverted(t, newConverter(t))
		clients := map[string]dynamic.ResourceInterface{}
		for _, version := range []string{"v1", "v1beta1"} {
			clients[version] = s.dynamic.Resource(schema.GroupVersionResource{Group: "example.com", Version: version,
				Resource: "crontabs"}).Namespace("default")
		}
		empty, err := clients["v1"].List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s.do(t, http.MethodPost, crontabPath("v1"), crontab("v1", "a", `{"schedule":"* 1"}`))
		s.change(t, "crontabs.example.com", storeLast)
		w := s.do(t, http.MethodPatch, crontabPath("v1")+"/a", `{"spec":{"schedule":"* 2"}}`, "Content-Type",
			"application/merge-patch+json")
		if w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		for version, field := range map[string]string{"v1": "schedule", "v1beta1": "cron"} {
			events, err := clients[version].Watch(t.Context(), metav1.ListOptions{ResourceVersion: empty.GetResourceVersion()})
			if err != nil {
				t.Fatal(err)
			}
			defer events.Stop()
			for _, want := range []string{"ADDED * 1", "MODIFIED * 2"} {
				event := <-events.ResultChan()
				u, ok := event.Object.(*unstructured.Unstructured)
				if !ok {
					t.Fatalf("in %s: %v", version, event)
				}
				value, _, _ := unstructured.NestedString(u.Object, "spec", field)
				if got := string(event.Type) + " " + value; got != want || u.GetAPIVersion() != "example.com/"+version {
					t.Errorf("in %s: %s of %s, want %s", version, got, u.GetAPIVersion(), want)
				}
			}
		}
	})
}

// TestConversion_SharesWebhookCalls: many readers read objects by each verb in a version
// that a webhook converts to. Each object is converted once, and one call converts a page
// of them.
func TestConversion_SharesWebhookCalls(t *testing.T) {
	t.Parallel()
	onDatabases(t, testConvertedTogether)
}

func testConvertedTogether(t *testing.T, s *server) {
	const objects = 60
	c := newConverter(t)
	s.defineConverted(t, c)
	for i := range objects {
		body := fmt.Sprintf(
			`{"apiVersion":"example.com/v1","kind":"CronTab","metadata":{"name":"a%02d","labels":{"odd":"%d"}},"spec":{"schedule":"%d"}}`, i, i%2, i)
		if w := s.do(t, http.MethodPost, crontabPath("v1"), body); w.Code != http.StatusCreated {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	since := func() func(what string, calls, objects int32) {
		calls, converted := c.calls.Load(), c.objects.Load()
		return func(what string, mostCalls, want int32) {
			t.Helper()
			if n, m := c.calls.Load()-calls, c.objects.Load()-converted; n > mostCalls || m != want {
				t.Errorf("%s: %d calls for %d objects, want at most %d for %d", what, n, m, mostCalls, want)
			}
		}
	}
	client := s.dynamic.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1beta1",
		Resource: "crontabs"}).Namespace("default")
	list := func(options metav1.ListOptions, want int) *unstructured.UnstructuredList {
		t.Helper()
		got, err := client.List(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Items) != want {
			t.Errorf("%d items, want %d", len(got.Items), want)
		}
		for _, item := range got.Items {
			cron, _, _ := unstructured.NestedString(item.Object, "spec", "cron")
			if item.GetAPIVersion() != "example.com/v1beta1" || cron == "" {
				t.Fatalf("not converted: %v", item.Object)
			}
		}
		return got
	}

	converted := since()
	list(metav1.ListOptions{Limit: 20}, 20)
	converted("a page", 1, 20)
	converted = since()
	var readers errgroup.Group
	for range 8 {
		readers.Go(func() error {
			list(metav1.ListOptions{}, objects)
			return nil
		})
	}
	if err := readers.Wait(); err != nil {
		t.Fatal(err)
	}
	converted("lists at the same time", 2, objects-20)
	converted = since()
	list(metav1.ListOptions{LabelSelector: "odd=1"}, objects/2)
	list(metav1.ListOptions{LabelSelector: "odd=0", Limit: 7}, 7)
	whole := list(metav1.ListOptions{ResourceVersion: "0"}, objects)
	converted("the same again", 0, 0)

	converted = since()
	var watches []apiwatch.Interface
	for _, options := range []metav1.ListOptions{
		{ResourceVersion: whole.GetResourceVersion()},
		{ResourceVersion: whole.GetResourceVersion()},
		{ResourceVersion: whole.GetResourceVersion(), LabelSelector: "odd=1"},
	} {
		events, err := client.Watch(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		defer events.Stop()
		watches = append(watches, events)
	}
	if w := s.do(t, http.MethodPatch, crontabPath("v1")+"/a01", `{"spec":{"schedule":"new"}}`, "Content-Type",
		"application/merge-patch+json"); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	for i, events := range watches {
		event := <-events.ResultChan()
		u, ok := event.Object.(*unstructured.Unstructured)
		if !ok || event.Type != apiwatch.Modified {
			t.Fatalf("watch %d: %v", i, event)
		}
		if cron, _, _ := unstructured.NestedString(u.Object, "spec", "cron"); cron != "new" {
			t.Errorf("watch %d: %v", i, u.Object)
		}
	}
	converted("one change for three watches", 1, 1)

	initial, err := client.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer initial.Stop()
	for range objects {
		<-initial.ResultChan()
	}
	converted("initial events", 1, 1)
}

// TestConversion_FailureHidesNoOtherObject: an object that the webhook fails to convert
// does not hide others.
func TestConversion_FailureHidesNoOtherObject(t *testing.T) {
	t.Parallel()
	onDatabases(t, testOneThatCannotBeConverted)
}

func testOneThatCannotBeConverted(t *testing.T, s *server) {
	c := newConverter(t)
	s.defineConverted(t, c)
	c.refuse.Store(new("bad"))
	for _, name := range []string{"a", "b", "bad", "c"} {
		if w := s.do(t, http.MethodPost, crontabPath("v1"),
			crontab("v1", name, `{"schedule":"* *"}`)); w.Code != http.StatusCreated {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	if w := s.do(t, http.MethodGet, crontabPath("v1beta1"), ""); w.Code != http.StatusInternalServerError ||
		!strings.Contains(w.Body.String(), "refused") {
		t.Errorf("list: %d %s", w.Code, w.Body)
	}
	// Nothing of a long list is sent before its last object is converted.
	for i := range 40 {
		if w := s.do(t, http.MethodPost, crontabPath("v1"),
			crontab("v1", fmt.Sprint("a", i), `{"schedule":"`+strings.Repeat("*", 10_000)+`"}`)); w.Code != http.StatusCreated {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	if w := s.do(t, http.MethodGet, crontabPath("v1beta1"), ""); w.Code != http.StatusInternalServerError ||
		!strings.Contains(w.Body.String(), `"kind":"Status"`) {
		t.Errorf("long list: %d with %d bytes", w.Code, w.Body.Len())
	}
	for name, code := range map[string]int{"a": 200, "b": 200, "c": 200, "bad": 500} {
		if w := s.do(t, http.MethodGet, crontabPath("v1beta1")+"/"+name, ""); w.Code != code {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	c.refuse.Store(nil)
	if w := s.do(t, http.MethodGet, crontabPath("v1beta1"), ""); w.Code != http.StatusOK {
		t.Errorf("list when the webhook has changed its mind: %d %s", w.Code, w.Body)
	}
}

// An object that a webhook does not convert is sound. Its reader is told of the webhook and not that the object is
// corrupt.
func TestConversion_FailureIsNoCorruption(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		c := newConverter(t)
		s.defineConverted(t, c)
		if w := s.do(t, http.MethodPost, crontabPath("v1"),
			crontab("v1", "a", `{"schedule":"* *"}`)); w.Code != http.StatusCreated {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		expect := func(when, want string) {
			t.Helper()
			for _, request := range [][3]string{
				{http.MethodGet, "/a", ""}, {http.MethodGet, "", ""}, {http.MethodDelete, "/a", ""},
			} {
				w := s.do(t, request[0], crontabPath("v1beta1")+request[1], request[2])
				if body := w.Body.String(); w.Code != http.StatusInternalServerError || strings.Contains(body, "orrupt") ||
					strings.Contains(body, "decodable") || !strings.Contains(body, want) {
					t.Errorf("%s, %s: %d %s", when, request, w.Code, body)
				}
			}
			if w := s.do(t, http.MethodGet, crontabPath("v1")+"/a", ""); w.Code != http.StatusOK {
				t.Errorf("%s the object is gone: %d %s", when, w.Code, w.Body)
			}
		}
		c.refuse.Store(new("a"))
		expect("when the webhook refuses", "refused")
		c.Close()
		expect("when the webhook is away", "conversion webhook for example.com/v1, Kind=CronTab failed")
	})
}
