package aggregator_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/retry"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"byre/apiserver/handlers/documents"
	"byre/sqlstore/storetest"
)

// aggregatedAPI has an aggregated discovery document that describes its own group and a
// group that is not its own.
func aggregatedAPI(name string, asked *atomic.Int32) *api {
	a := newAPI(name)
	version := func(v string) apidiscoveryv2.APIVersionDiscovery {
		return apidiscoveryv2.APIVersionDiscovery{Version: v, Resources: []apidiscoveryv2.APIResourceDiscovery{
			{Resource: "gadgets-" + v, SingularResource: "gadget", Scope: apidiscoveryv2.ScopeCluster, Verbs: []string{"get"}},
		}}
	}
	a.HandleFunc("/apis", func(w http.ResponseWriter, req *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", aggregatedType)
		w.Header().Set("Etag", `"one"`)
		if req.Header.Get("If-None-Match") == `"one"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_ = json.NewEncoder(w).Encode(apidiscoveryv2.APIGroupDiscoveryList{Items: []apidiscoveryv2.APIGroupDiscovery{
			{ObjectMeta: metav1.ObjectMeta{Name: a.group},
				Versions: []apidiscoveryv2.APIVersionDiscovery{version("v1"), version("v2")}},
			{ObjectMeta: metav1.ObjectMeta{Name: "apiregistration.k8s.io"},
				Versions: []apidiscoveryv2.APIVersionDiscovery{version("v1")}},
		}})
	})
	return a
}

// TestDiscovery_MergesBackends: both discovery documents list the groups of backends beside
// local groups, in the order of their priorities, and drop them when the backend is
// unregistered.
func TestDiscovery_MergesBackends(t *testing.T) {
	t.Parallel()
	s := start(t)
	add(t, s, documents.BuiltIn, "apps", "v1")
	add(t, s, documents.Custom, "custom.example.com", "v1")
	var asked atomic.Int32
	widgets, gadgets := newBackend(t, s, "widgets", newAPI("widgets")),
		newBackend(t, s, "gadgets", aggregatedAPI("gadgets", &asked))
	widgets.register(t, s, "v1", place(20000, 5))
	widgets.register(t, s, "v2", place(20000, 7))
	gadgets.register(t, s, "v1", place(10, 1))
	for _, version := range []string{"v1", "v2"} {
		widgets.served(t, s, version)
	}
	gadgets.served(t, s, "v1")
	for _, group := range []string{widgets.group(), gadgets.group()} {
		s.awaitFreshness(t, group, apidiscoveryv2.DiscoveryFreshnessCurrent)
	}
	want := []string{"apiregistration.k8s.io/v1", "widgets.example.com/v2", "widgets.example.com/v1", "apps/v1",
		"custom.example.com/v1", "gadgets.example.com/v1"}
	if got := s.listed(t); !slices.Equal(got, want) {
		t.Errorf("/apis lists %v, want %v", got, want)
	}
	resources := map[string][]string{}
	var order []string
	for _, group := range s.aggregated(t).Items {
		for _, version := range group.Versions {
			name := group.Name + "/" + version.Version
			order = append(order, name)
			for _, r := range version.Resources {
				resources[name] = append(resources[name], r.Resource)
				if r.ResponseKind == nil {
					t.Errorf("%s of %s has no kind, which clients of some versions don't survive", r.Resource, name)
				}
			}
		}
	}
	if !slices.Equal(order, want) {
		t.Errorf("the aggregated document lists %v, want %v", order, want)
	}
	for name, want := range map[string]string{
		"widgets.example.com/v1": "widgets", "widgets.example.com/v2": "widgets", "gadgets.example.com/v1": "gadgets-v1",
		"apiregistration.k8s.io/v1": "apiservices",
	} {
		if got := strings.Join(resources[name], " "); got != want {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
	var group metav1.APIGroup
	if _, body, _ := get(t, s.front.URL+"/apis/widgets.example.com"); json.Unmarshal([]byte(body), &group) != nil ||
		group.PreferredVersion.Version != "v2" || len(group.Versions) != 2 {
		t.Errorf("the group's document: %s", body)
	}
	// The same document describes a second version of the same server.
	gadgets.register(t, s, "v2", place(10, 2))
	gadgets.served(t, s, "v2")
	s.awaitListed(t, "gadgets.example.com/v2")
	if err := s.services.Delete(t.Context(), "v1.gadgets.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.awaitNotListed(t, "gadgets.example.com/v1")
	if status, _, _ := get(t, s.front.URL+"/apis/gadgets.example.com/v1/gadgets"); status != http.StatusNotFound {
		t.Errorf("a path whose route was removed answers %d", status)
	}
}

// TestDiscovery_FollowsPrioritiesOfUsers: the priorities of an APIService that a user has made
// for a group version of this server count in /apis, until it is deleted.
func TestDiscovery_FollowsPrioritiesOfUsers(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, group := range []string{"a.example.com", "b.example.com"} {
		for _, version := range []string{"v1", "v2"} {
			add(t, s, documents.BuiltIn, group, version)
		}
	}
	const first = "apiregistration.k8s.io/v1 "
	own := first + "a.example.com/v2 a.example.com/v1 b.example.com/v2 b.example.com/v1"
	if got := strings.Join(s.listed(t), " "); got != own {
		t.Fatalf("/apis lists %s, want %s", got, own)
	}
	for version, priority := range map[string]int32{"v1": 20, "v2": 10} {
		mine := service("b.example.com", version)
		place(15000, priority)(&mine.Spec)
		if _, err := s.services.Create(t.Context(), mine, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{first + "b.example.com/v1 b.example.com/v2 a.example.com/v2 a.example.com/v1", own} {
		storetest.EventuallyDone(t, want, func(context.Context) (bool, error) {
			return strings.Join(s.listed(t), " ") == want, nil
		})
		for _, version := range []string{"v1", "v2"} {
			err := s.services.Delete(t.Context(), version+".b.example.com", metav1.DeleteOptions{})
			if want != own && err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestOpenAPI_MergesBackends: this server's documents contain those of the backends; a
// broken document of one backend does not affect the others.
func TestOpenAPI_MergesBackends(t *testing.T) {
	t.Parallel()
	s := start(t)
	v3 := newAPI("young")
	v2Text := func(group string) string {
		return `{"swagger":"2.0","info":{"title":"x","version":"1"},"paths":{"/apis/` + group +
			`/v1/widgets":{"get":{"description":"widgets of ` + group +
			`","responses":{"200":{"description":"OK"}}}},"/apis/apps/v1/lies":{"get":{"description":"a lie","responses":{"200":{"description":"OK"}}}}}}`
	}
	serveText := func(a *api, path, text string) {
		a.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, text)
		})
	}
	serveText(v3, "/openapi/v2", v2Text("young.example.com"))
	serveText(v3, "/openapi/v3",
		`{"paths":{"apis/young.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/young.example.com/v1?hash=1"},`+
			`"apis/apps/v1":{"serverRelativeURL":"/openapi/v3/apis/apps/v1?hash=1"}}}`)
	serveText(v3, "/openapi/v3/apis/young.example.com/v1",
		`{"openapi":"3.0.0","info":{"title":"young","version":"1"},"paths":{}}`)
	v2 := newAPI("old")
	serveText(v2, "/openapi/v2", v2Text("old.example.com"))
	garbage := newAPI("garbage")
	serveText(garbage, "/openapi/v2",
		`{"swagger":"2.0","paths":{"/apis/garbage.example.com/v1/x":{"get":{"parameters":"hello"}}}}`)
	elsewhere := newAPI("elsewhere")
	serveText(elsewhere, "/openapi/v2", v2Text("elsewhere.example.com"))
	serveText(elsewhere, "/openapi/v3",
		`{"paths":{"apis/elsewhere.example.com/v1":{"serverRelativeURL":"https://169.254.169.254/"}}}`)
	for name, handler := range map[string]http.Handler{"young": v3, "old": v2, "garbage": garbage,
		"elsewhere": elsewhere} {
		newBackend(t, s, name, handler).register(t, s, "v1")
	}
	for _, group := range []string{"young.example.com", "old.example.com"} {
		s.awaitText(t, "/openapi/v3", `"apis/`+group+`/v1"`)
	}
	merged := s.awaitText(t, "/openapi/v2", "widgets of old.example.com")
	for part, want := range map[string]bool{
		"/apis/apiregistration.k8s.io/v1/apiservices": true,
		"widgets of young.example.com":                true,
		"a lie":                                       false,
		"garbage.example.com":                         false,
	} {
		if strings.Contains(merged, part) != want {
			t.Errorf("version 2 has %q: %v", part, !want)
		}
	}
	for group, want := range map[string]string{"young.example.com": `"title":"young"`,
		"old.example.com": "widgets of old.example.com"} {
		if status, text, _ := get(t, s.front.URL+"/openapi/v3/apis/"+group+"/v1"); status != http.StatusOK ||
			!strings.Contains(text, want) {
			t.Errorf("version 3 of %s: %d %s", group, status, text)
		}
	}
	for _, path := range []string{"apps/v1", "garbage.example.com/v1", "elsewhere.example.com/v1"} {
		if status, text, _ := get(t, s.front.URL+"/openapi/v3/apis/"+path); status != http.StatusNotFound {
			t.Errorf("version 3 of %s: %d %s", path, status, text)
		}
	}
	if err := s.services.Delete(t.Context(), "v1.old.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.awaitDocument(t, "/openapi/v2", func(text string) bool { return !strings.Contains(text, "widgets of old") })
}

// add registers a group version that this server serves itself.
func add(t testing.TB, s *server, origin documents.Origin, group, version string) {
	t.Helper()
	err := s.registry.Add(documents.DiscoveryVersion{
		GroupVersion: schema.GroupVersion{Group: group, Version: version},
		Origin:       origin,
		Resources: []metav1.APIResource{{Name: "things", SingularName: "thing", Kind: "Thing",
			Verbs: metav1.Verbs{"get"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func place(group, version int32) func(*apiregistrationv1.APIServiceSpec) {
	return func(spec *apiregistrationv1.APIServiceSpec) {
		spec.GroupPriorityMinimum, spec.VersionPriority = group, version
	}
}

// listed are the group versions of /apis, in order.
func (s *server) listed(t testing.TB) []string {
	t.Helper()
	var list metav1.APIGroupList
	_, body, _ := get(t, s.front.URL+"/apis")
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	var names []string
	for _, group := range list.Groups {
		for _, version := range group.Versions {
			names = append(names, version.GroupVersion)
		}
	}
	return names
}

func (s *server) awaitListed(t testing.TB, name string) {
	t.Helper()
	s.awaitDocument(t, "/apis", func(text string) bool { return strings.Contains(text, strconv.Quote(name)) })
}

func (s *server) awaitNotListed(t testing.TB, name string) {
	t.Helper()
	s.awaitDocument(t, "/apis", func(text string) bool { return !strings.Contains(text, strconv.Quote(name)) })
}

func (s *server) awaitText(t testing.TB, path, want string) string {
	t.Helper()
	return s.awaitDocument(t, path, func(text string) bool { return strings.Contains(text, want) })
}

// awaitDocument waits until right accepts the document's text, and returns the text.
func (s *server) awaitDocument(t testing.TB, path string, right func(text string) bool) string {
	t.Helper()
	var text string
	storetest.EventuallyDone(t, path, func(context.Context) (bool, error) {
		_, text, _ = get(t, s.front.URL+path)
		return right(text), nil
	})
	return text
}

// documented adds OpenAPI documents to an API: of version 3, and of version 2 unless broken
// is set.
func documented(a *api, broken *atomic.Bool) *api {
	text := func(path, text string) {
		a.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			if path == "/openapi/v2" && broken.Load() {
				http.Error(w, "broken", http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, text)
		})
	}
	text("/openapi/v2",
		`{"swagger":"2.0","info":{"title":"x","version":"1"},"paths":{"/apis/`+a.group+
			`/v1/widgets":{"get":{"description":"widgets of `+a.group+
			`","responses":{"200":{"description":"OK"}}}}}}`)
	text("/openapi/v3", `{"paths":{"apis/`+a.group+`/v1":{"serverRelativeURL":"/openapi/v3/apis/`+a.group+`/v1?hash=1"}}}`)
	text("/openapi/v3/apis/"+a.group+"/v1",
		`{"openapi":"3.0.0","info":{"title":"third of `+a.group+`","version":"1"},"paths":{}}`)
	return a
}

// TestOpenAPI_ShowsVersion3WithoutVersion2: the v3 documents of a backend are merged even
// when its v2 document cannot be read.
func TestOpenAPI_ShowsVersion3WithoutVersion2(t *testing.T) {
	t.Parallel()
	s := start(t)
	var broken atomic.Bool
	broken.Store(true)
	newBackend(t, s, "widgets", documented(newAPI("widgets"), &broken)).register(t, s, "v1")
	s.awaitText(t, "/openapi/v3", `"apis/widgets.example.com/v1"`)
	if _, text, _ := get(t, s.front.URL+"/openapi/v3/apis/widgets.example.com/v1"); !strings.Contains(text,
		"third of widgets") {
		t.Error(text)
	}
}

// TestDiscovery_StaysWhileCertificatesRotate: when the CA bundle of a backend changes, its
// group stays in discovery and in the OpenAPI documents until the backend has been asked
// with the new bundle, even if it then fails to answer.
func TestDiscovery_StaysWhileCertificatesRotate(t *testing.T) {
	t.Parallel()
	s := start(t)
	var silent atomic.Bool
	var refused atomic.Int32
	a := documented(newAPI("widgets"), &atomic.Bool{})
	b := newBackend(t, s, "widgets", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if silent.Load() && req.Header.Get("X-Remote-User") != "" {
			refused.Add(1)
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		a.ServeHTTP(w, req)
	}))
	b.available(t, s)
	s.awaitText(t, "/openapi/v3", `"apis/widgets.example.com/v1"`)
	s.awaitText(t, "/openapi/v2", "widgets of widgets.example.com")

	update := func(change func(*apiregistrationv1.APIService)) {
		t.Helper()
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			service, err := s.services.Get(t.Context(), "v1."+b.group(), metav1.GetOptions{})
			if err != nil {
				return err
			}
			change(service)
			_, err = s.services.Update(t.Context(), service, metav1.UpdateOptions{})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	silent.Store(true)
	for i, change := range []func(*apiregistrationv1.APIService){
		func(service *apiregistrationv1.APIService) {
			service.Spec.CABundle = append(service.Spec.CABundle, newAuthority(t, "next").pem...)
		},
		func(service *apiregistrationv1.APIService) {
			service.Spec.CABundle = append(service.Spec.CABundle, newAuthority(t, "next").pem...)
		},
		func(service *apiregistrationv1.APIService) { service.Spec.Service.Name = "nosuch" },
	} {
		before := refused.Load()
		update(change)
		if i < 2 { // the backend was asked with the new bundle and answered 503
			awaitCount(t, &refused, before+1)
		}
		s.awaitFreshness(t, b.group(), apidiscoveryv2.DiscoveryFreshnessStale)
		for _, group := range s.aggregated(t).Items {
			if group.Name == b.group() &&
				(len(group.Versions[0].Resources) != 1 || group.Versions[0].Resources[0].Resource != "widgets") {
				t.Errorf("resources: %+v", group.Versions[0].Resources)
			}
		}
		for path, want := range map[string]string{
			"/openapi/v2": "widgets of widgets.example.com",
			"/openapi/v3/apis/widgets.example.com/v1": "third of widgets.example.com",
		} {
			if status, text, _ := get(t, s.front.URL+path); status != http.StatusOK || !strings.Contains(text, want) {
				t.Errorf("%s: %d, without %q", path, status, want)
			}
		}
	}
	silent.Store(false)
	update(func(service *apiregistrationv1.APIService) { service.Spec.Service.Name = b.name })
	s.awaitFreshness(t, b.group(), apidiscoveryv2.DiscoveryFreshnessCurrent)
}

func awaitCount(t testing.TB, count *atomic.Int32, least int32) {
	t.Helper()
	storetest.EventuallyDone(t, "requests", func(context.Context) (bool, error) { return count.Load() >= least, nil })
}
