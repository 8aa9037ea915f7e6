package handlers_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/admission"

	"byre/apiserver/handlers"
	"byre/apiserver/storage/stack"
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

// BenchmarkOptimizations creates Pods with all optimizations of writes and without each of
// them. It alternates between them within one run, so that other load on the machine
// affects all alike. It reports the processor time of a create, and how many percent more
// it takes without each optimization.
func BenchmarkOptimizations(b *testing.B) {
	s := newAdmittingServer(b, nil, admitAll{})
	variants := []struct {
		name   string
		change func(handlers.Serving) handlers.Serving
		used   int64
	}{
		{name: "all", change: func(s handlers.Serving) handlers.Serving { return s }},
		{name: "write-result", change: handlers.WithoutWriteResult},
		{name: "field-removal", change: handlers.WithoutFieldRemoval},
		{name: "stack-growth", change: handlers.WithoutStackGrowth},
	}
	const batch = 20
	var created int64
	built := make([]http.Handler, len(variants))
	for i := range variants {
		built[i] = s.handler(variants[i].change(s.serving))
	}
	for b.Loop() {
		for i := range variants {
			v := &variants[(int(created)+i)%len(variants)]
			handler := built[(int(created)+i)%len(variants)]
			began := cpuTime(b)
			for n := range batch {
				createOnGoroutine(b, handler, fmt.Sprintf("%s-%d-%d", v.name, created, n), v.name != "stack-growth")
			}
			v.used += cpuTime(b) - began
		}
		created++
	}
	all := float64(variants[0].used)
	b.ReportMetric(all/float64(created*batch), "cpu-ns/create")
	for _, v := range variants[1:] {
		b.ReportMetric(100*(float64(v.used)/all-1), "%-without-"+v.name)
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
			stack.GrowForHandler()
		}
		handler.ServeHTTP(w, req)
	}()
	if <-done; w.Code != http.StatusCreated {
		b.Fatal(w.Code, w.Body)
	}
}
