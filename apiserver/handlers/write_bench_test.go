package handlers_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/admission"

	"byre/apiserver/apitest"
	"byre/apiserver/handlers"
)

// admitAll is admission that changes nothing.
type admitAll struct{}

func (admitAll) Handles(admission.Operation) bool { return true }

func (admitAll) Admit(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return nil
}

func (admitAll) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return nil
}

// BenchmarkCreate creates Pods by upstream's handlers, by ours, and by ours on a goroutine whose
// stack was not grown before, in turns, so that other load on the machine affects all alike. It
// reports the processor time of a create.
func BenchmarkCreate(b *testing.B) {
	s := newAdmittingServer(b, nil, admitAll{})
	ours := s.handler(s.serving)
	variants := map[string]http.Handler{"upstream": apitest.WithContext(s.api.UpstreamWrites(), someone), "ours": ours, "small-stack": ours}
	const batch = 20
	used, created := map[string]int64{}, 0
	for b.Loop() {
		for name, handler := range variants {
			began := cpuTime(b)
			for n := range batch {
				createOnGoroutine(b, handler, fmt.Sprintf("%s-%d-%d", name, created, n), name != "small-stack")
			}
			used[name] += cpuTime(b) - began
		}
		created++
	}
	for name, time := range used {
		b.ReportMetric(float64(time)/float64(created*batch), "cpu-ns/"+name)
	}
}

// createOnGoroutine creates a Pod on a fresh goroutine, as the timeout filter does.
func createOnGoroutine(b *testing.B, handler http.Handler, name string, grow bool) {
	b.Helper()
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"labels":{"app":"web"}},"spec":{"containers":[{"name":"c","image":"i","env":[{"name":"A","value":"1"},{"name":"B","value":"2"}]},{"name":"d","image":"i"}]}}`, name)
	req := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/api/v1/namespaces/first/pods", strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if grow {
			handlers.GrowForHandler()
		}
		handler.ServeHTTP(w, req)
	}()
	if <-done; w.Code != http.StatusCreated {
		b.Fatal(w.Code, w.Body)
	}
}
