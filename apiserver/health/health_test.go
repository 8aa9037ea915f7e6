package health_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"byre/apiserver/health"
)

func ask(t *testing.T, mux *http.ServeMux, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func TestGatesAndShutdown(t *testing.T) {
	gate := health.NewGate("poststarthook/first")
	stopping := make(chan struct{})
	var down error
	mux := http.NewServeMux()
	health.Install(mux,
		[]health.Checker{gate, health.Store(func(context.Context) error { return down })},
		[]health.Checker{health.Shutdown(stopping)})

	if status, body := ask(t, mux, "/readyz"); status != http.StatusInternalServerError || !strings.Contains(body, "[-]poststarthook/first failed: reason withheld") {
		t.Errorf("before the gate is open: %d %s", status, body)
	}
	gate.Open()
	for _, path := range []string{"/livez", "/readyz", "/healthz", "/readyz/shutdown", "/livez/store", "/healthz/ping"} {
		if status, body := ask(t, mux, path); status != http.StatusOK || body != "ok" {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if _, body := ask(t, mux, "/livez?verbose"); body != "[+]ping ok\n[+]poststarthook/first ok\n[+]store ok\nlivez check passed\n" {
		t.Errorf("verbose: %q", body)
	}

	down = errors.New("no route to 192.0.2.1")
	if status, body := ask(t, mux, "/readyz"); status != http.StatusInternalServerError || strings.Contains(body, "192.0.2.1") {
		t.Errorf("with the database away: %d %s, and the reason is not for everyone", status, body)
	}
	if status, _ := ask(t, mux, "/readyz?exclude=store"); status != http.StatusOK {
		t.Errorf("with the check excluded: %d", status)
	}
	down = nil

	close(stopping)
	if status, body := ask(t, mux, "/readyz"); status != http.StatusInternalServerError || !strings.Contains(body, "[-]shutdown failed") {
		t.Errorf("while it stops: %d %s", status, body)
	}
	if status, _ := ask(t, mux, "/livez"); status != http.StatusOK {
		t.Errorf("a server that stops lives, but /livez is %d", status)
	}
}
