package documents_test

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/handlers/documents"
)

const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

func version(group, name string, origin documents.Origin, kinds ...string) documents.DiscoveryVersion {
	v := documents.DiscoveryVersion{GroupVersion: schema.GroupVersion{Group: group, Version: name}, Origin: origin}
	for _, kind := range kinds {
		v.Resources = append(v.Resources, metav1.APIResource{
			Name: strings.ToLower(kind) + "s", SingularName: strings.ToLower(kind), Kind: kind, Verbs: metav1.Verbs{"get"},
		})
	}
	return v
}

func add(t *testing.T, r *documents.Discovery, versions ...documents.DiscoveryVersion) {
	t.Helper()
	for _, v := range versions {
		if err := r.Add(v); err != nil {
			t.Fatal(err)
		}
	}
}

func getDocument(t *testing.T, h http.Handler, accept string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequest(http.MethodGet, "/", nil)
	req.Header.Set("Accept", accept)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

// groups returns the group versions of /apis in the order of the legacy document. The
// aggregated document must have the same versions of each group in the same order.
func groups(t *testing.T, r *documents.Discovery) []string {
	t.Helper()
	var list metav1.APIGroupList
	if err := json.Unmarshal(getDocument(t, r.GroupsHandler(), "application/json").Body.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	legacy := []string{}
	for _, group := range list.Groups {
		for _, v := range group.Versions {
			legacy = append(legacy, v.GroupVersion)
		}
		if group.PreferredVersion != group.Versions[0] {
			t.Errorf("%s prefers %s", group.Name, group.PreferredVersion.Version)
		}
	}
	var tree struct {
		Items []struct {
			Metadata metav1.ObjectMeta
			Versions []struct{ Version string }
		}
	}
	if err := json.Unmarshal(getDocument(t, r.GroupsHandler(), aggregated).Body.Bytes(), &tree); err != nil {
		t.Fatal(err)
	}
	whole := []string{}
	for _, item := range tree.Items {
		for _, v := range item.Versions {
			whole = append(whole, item.Metadata.Name+"/"+v.Version)
		}
	}
	byGroup := func(a, b string) int {
		return strings.Compare(strings.Split(a, "/")[0], strings.Split(b, "/")[0])
	}
	slices.SortStableFunc(whole, byGroup)
	sorted := slices.Clone(legacy)
	slices.SortStableFunc(sorted, byGroup)
	if diff := cmp.Diff(sorted, whole); diff != "" {
		t.Errorf("the two documents disagree (-legacy +aggregated):\n%s", diff)
	}
	return legacy
}

// TestRegistry_OrdersByPriority: groups are ordered by priority and then by the first name of
// an APIService of theirs, v1.b.example before v1alpha1.a.example. Versions are ordered by
// priority and then by maturity.
func TestRegistry_OrdersByPriority(t *testing.T) {
	t.Parallel()
	r := documents.NewDiscovery("")
	first := version("z.example", "v1", documents.BuiltIn, "Widget")
	first.GroupPriority = 9000
	old := version("z.example", "v2", documents.BuiltIn, "Widget")
	old.GroupPriority, old.Priority = 9000, 1
	add(t, r, version("b.example", "v1beta1", documents.Custom, "Widget"),
		version("b.example", "v1", documents.Custom, "Widget"),
		version("b.example", "v10", documents.Custom, "Widget"), version("a.example", "v1alpha1", documents.Custom, "Widget"),
		old, first)
	want := []string{"z.example/v1", "z.example/v2", "b.example/v10", "b.example/v1", "b.example/v1beta1",
		"a.example/v1alpha1"}
	if diff := cmp.Diff(want, groups(t, r)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestRegistry_ShowsWhatIsAddedAndRemoved: an added group version is in every document, a
// removed one in none.
func TestRegistry_ShowsWhatIsAddedAndRemoved(t *testing.T) {
	t.Parallel()
	r := documents.NewDiscovery("")
	gv := schema.GroupVersion{Group: "widgets.example", Version: "v1"}
	if _, ok := r.Lookup("/apis/widgets.example/v1"); ok {
		t.Error("there is a document before there is a group")
	}
	add(t, r, version("widgets.example", "v1", documents.Custom, "Widget"),
		version("widgets.example", "v2", documents.Custom, "Widget"))
	for _, path := range []string{"/apis/widgets.example", "/apis/widgets.example/", "/apis/widgets.example/v1"} {
		document, ok := r.Lookup(path)
		if !ok || getDocument(t, document, "application/json").Code != http.StatusOK {
			t.Errorf("no document at %s", path)
		}
	}
	for _, path := range []string{"/apis", "/apis/", "/apis/widgets.example/v3", "/apis/widgets.example/v1/widgets",
		"/apis/gadgets.example", "/api/v1", "apis/widgets.example"} {
		if _, ok := r.Lookup(path); ok {
			t.Errorf("a document at %s", path)
		}
	}
	if want := []string{"/apis", "/apis/", "/apis/widgets.example", "/apis/widgets.example/v1",
		"/apis/widgets.example/v2"}; !slices.Equal(want, r.Paths()) {
		t.Errorf("paths are %v", r.Paths())
	}

	r.Remove(gv, documents.Custom)
	if diff := cmp.Diff([]string{"widgets.example/v2"}, groups(t, r)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := getDocument(t, r.VersionHandler(gv), "application/json").Code; got != http.StatusNotFound {
		t.Errorf("the document of a removed version is %d", got)
	}
	r.Remove(schema.GroupVersion{Group: "widgets.example", Version: "v2"}, documents.Custom)
	if got := getDocument(t, r.GroupHandler("widgets.example"), "application/json").Code; got != http.StatusNotFound {
		t.Errorf("the document of a removed group is %d", got)
	}
	if got := groups(t, r); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}

// TestRegistry_AggregatedComesBeforeBuiltIn: if several servers register one group version,
// the aggregated one comes before the built-in one, and that before custom resources. When
// the first is removed the next is listed.
func TestRegistry_AggregatedComesBeforeBuiltIn(t *testing.T) {
	t.Parallel()
	r := documents.NewDiscovery("")
	gv := schema.GroupVersion{Group: "widgets.example", Version: "v1"}
	kind := func() string {
		var list metav1.APIResourceList
		if err := json.Unmarshal(getDocument(t, r.VersionHandler(gv), "application/json").Body.Bytes(), &list); err != nil {
			t.Fatal(err)
		}
		whole := getDocument(t, r.GroupsHandler(), aggregated).Body.String()
		if !strings.Contains(whole, `"kind":"`+list.APIResources[0].Kind+`"`) || strings.Count(whole, `"responseKind"`) != 1 {
			t.Errorf("the aggregated document has another: %s", whole)
		}
		return list.APIResources[0].Kind
	}
	add(t, r, version("widgets.example", "v1", documents.Custom, "Gadget"))
	add(t, r, version("widgets.example", "v1", documents.Aggregated, "Sprocket"))
	add(t, r, version("widgets.example", "v1", documents.BuiltIn, "Widget"))
	var got []string
	for _, origin := range []documents.Origin{documents.Aggregated, documents.BuiltIn} {
		got = append(got, kind())
		r.Remove(gv, origin)
	}
	got = append(got, kind())
	if want := []string{"Sprocket", "Widget", "Gadget"}; !slices.Equal(want, got) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestAggregatedDocument_HasAnETag: a client that has the current document gets 304, and
// the tag changes with the document.
func TestAggregatedDocument_HasAnETag(t *testing.T) {
	t.Parallel()
	r := documents.NewDiscovery("")
	add(t, r, version("widgets.example", "v1", documents.Custom, "Widget"))
	first := getDocument(t, r.GroupsHandler(), aggregated)
	tag := first.Header().Get("ETag")
	if tag == "" || first.Header().Get("Content-Type") != aggregated {
		t.Fatalf("headers %v", first.Header())
	}
	if again := getDocument(t, r.GroupsHandler(), aggregated, "If-None-Match", tag); again.Code != http.StatusNotModified {
		t.Errorf("unchanged, but %d", again.Code)
	}
	add(t, r, version("widgets.example", "v2", documents.Custom, "Widget"))
	if again := getDocument(t, r.GroupsHandler(), aggregated, "If-None-Match", tag); again.Code != http.StatusOK {
		t.Errorf("changed, but %d", again.Code)
	}
}

// TestRegistry_CoreGroupHasItsOwnDocuments: the core group has documents of its own.
func TestRegistry_CoreGroupHasItsOwnDocuments(t *testing.T) {
	t.Parallel()
	_, inside, err := net.ParseCIDR("192.0.2.0/24")
	if err != nil {
		t.Fatal(err)
	}
	r := documents.NewDiscovery("192.0.2.1:6443", documents.CIDRRule{IPRange: *inside, Address: "10.0.0.1:443"})
	add(t, r, version("", "v1", documents.BuiltIn, "Widget"), version("widgets.example", "v1", documents.Custom, "Gadget"))
	want := `{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":"192.0.2.1:6443"},{"clientCIDR":"192.0.2.0/24","serverAddress":"10.0.0.1:443"}]}`
	if got := strings.TrimSpace(getDocument(t, r.LegacyHandler(), "application/json").Body.String()); got != want {
		t.Errorf("got %s", got)
	}
	whole := getDocument(t, r.LegacyHandler(), aggregated).Body.String()
	if !strings.Contains(whole, "Widget") || strings.Contains(whole, "Gadget") {
		t.Errorf("got %s", whole)
	}
	if diff := cmp.Diff([]string{"widgets.example/v1"}, groups(t, r)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
