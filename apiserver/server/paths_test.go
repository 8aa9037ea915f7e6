package server

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

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
