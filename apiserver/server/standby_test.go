package server

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWithFence_RefusesWhenAnotherServerMayServe(t *testing.T) {
	var lost error
	handler := withFence(func() error {
		return lost
	}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }))
	serve := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w,
			httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/pods?resourceVersion=0", nil))
		return w
	}
	if w := serve(); w.Code != http.StatusAccepted {
		t.Errorf("status %d with the lease", w.Code)
	}
	lost = errors.New("another server may serve")
	w := serve()
	var status metav1.Status
	if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil {
		t.Fatal(err)
	}
	if w.Code != http.StatusServiceUnavailable || status.Reason != metav1.StatusReasonServiceUnavailable ||
		status.Message != lost.Error() || w.Header().Get("Retry-After") == "" {
		t.Errorf("status %d, %+v, headers %v", w.Code, status, w.Header())
	}
}
