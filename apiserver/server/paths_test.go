package server

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"byre/apiserver/process"
)

// manyChecks are as many as a server has.
func manyChecks() process.HealthChecks {
	var checks process.HealthChecks
	for i := range 30 {
		checks.BootSequence = append(checks.BootSequence, healthz.NamedCheck(fmt.Sprintf("poststarthook/%d", i), func(*http.Request) error { return nil }))
	}
	return checks
}

// TestCheckPaths_AreServedAndListed compares with upstream's mux alone.
func TestCheckPaths_AreServedAndListed(t *testing.T) {
	t.Parallel()
	teapot := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	upstream, ours := mux.NewPathRecorderMux("upstream"), mux.NewPathRecorderMux("byre")
	upstream.NotFoundHandler(teapot)
	ours.NotFoundHandler(teapot)
	process.InstallHealth(upstream, manyChecks())
	checks := newCheckPaths(teapot)
	process.InstallHealth(checks, manyChecks())
	checks.addTo(ours)

	listed := checks.ListedPaths()
	slices.Sort(listed)
	if want := upstream.ListedPaths(); !slices.Equal(listed, want) || len(want) < 90 {
		t.Errorf("listed are %q, want %q", listed, want)
	}
	if got := ours.ListedPaths(); len(got) > 0 {
		t.Errorf("listed twice are %q", got)
	}
	for _, path := range append(listed, "/livez/", "/livez/unknown", "/readyz/poststarthook", "/livezz", "/") {
		want, got := httptest.NewRecorder(), httptest.NewRecorder()
		upstream.ServeHTTP(want, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		ours.ServeHTTP(got, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if got.Code != want.Code || got.Body.String() != want.Body.String() {
			t.Errorf("%s: %d %q, want %d %q", path, got.Code, got.Body, want.Code, want.Body)
		}
	}
}

// BenchmarkCheckPaths installs the checks of a server in upstream's mux, and beside it.
func BenchmarkCheckPaths(b *testing.B) {
	b.Run("upstream", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			process.InstallHealth(mux.NewPathRecorderMux("upstream"), manyChecks())
		}
	})
	b.Run("byre", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			checks := newCheckPaths(http.NotFoundHandler())
			process.InstallHealth(checks, manyChecks())
			checks.addTo(mux.NewPathRecorderMux("byre"))
		}
	})
}

// TestInformerCheck_WaitsForTheAuthorizer: the check of the informers fails while the authorizer has
// not read what it decides by.
func TestInformerCheck_WaitsForTheAuthorizer(t *testing.T) {
	t.Parallel()
	notYet := errors.New("not yet")
	result := notYet
	check := informerCheck(func() error { return result }, informers.NewSharedInformerFactory(fake.NewClientset(), 0))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil)
	if err := check.Check(r); check.Name() != "informer-sync" || !errors.Is(err, notYet) {
		t.Errorf("the check %s says %v", check.Name(), err)
	}
	result = nil
	if err := check.Check(r); err != nil {
		t.Errorf("the authorizer is ready, but the check says %v", err)
	}
}
