package process_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"

	"byre/apiserver/process"
)

func ask(t *testing.T, mux *http.ServeMux, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func TestHealth_FollowsGatesAndShutdown(t *testing.T) { synctest.Test(t, testGatesAndShutdown) }

func testGatesAndShutdown(t *testing.T) {
	gate := make(chan struct{})
	stopping := make(chan struct{})
	var down error
	mux := http.NewServeMux()
	store, storeReady := process.StoreHealth(func(context.Context) error { return down })
	process.InstallHealth(mux, process.HealthChecks{
		Always:       []process.HealthChecker{store},
		BootSequence: []process.HealthChecker{process.PostStartHook("first", gate)},
		ReadyzOnly:   []process.HealthChecker{storeReady, healthz.NewShutdownHealthz(stopping)},
	})

	if status, body := ask(t, mux, "/readyz"); status != http.StatusInternalServerError ||
		!strings.Contains(body, "[-]poststarthook/first failed: reason withheld") {
		t.Errorf("before the gate is open: %d %s", status, body)
	}
	close(gate)
	for _, path := range []string{"/livez", "/readyz", "/healthz", "/readyz/shutdown", "/livez/etcd",
		"/readyz/etcd-readiness", "/healthz/ping"} {
		if status, body := ask(t, mux, path); status != http.StatusOK || body != "ok" {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if _, body := ask(t, mux,
		"/livez?verbose"); body != "[+]ping ok\n[+]etcd ok\n[+]poststarthook/first ok\nlivez check passed\n" {
		t.Errorf("verbose: %q", body)
	}

	down = errors.New("no route to 192.0.2.1")
	time.Sleep(time.Second) // requests of one second share an answer
	if status, body := ask(t, mux, "/readyz"); status != http.StatusInternalServerError ||
		strings.Contains(body, "192.0.2.1") {
		t.Errorf("with the database unavailable: %d %s, want 500 without the reason", status, body)
	}
	if status, _ := ask(t, mux, "/readyz?exclude=etcd&exclude=etcd-readiness"); status != http.StatusOK {
		t.Errorf("with the check excluded: %d", status)
	}
	down = nil
	time.Sleep(time.Second)

	close(stopping)
	if status, body := ask(t, mux, "/readyz"); status != http.StatusInternalServerError ||
		!strings.Contains(body, "[-]shutdown failed") {
		t.Errorf("while it stops: %d %s", status, body)
	}
	if status, _ := ask(t, mux, "/livez"); status != http.StatusOK {
		t.Errorf("a server that stops lives, but /livez is %d", status)
	}
}

// A check of its own path tells, and does not take the server out of service.
func TestHealth_SeparateChecksDoNotFailReadyz(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	process.InstallHealth(mux, process.HealthChecks{Separate: []process.HealthChecker{
		healthz.NamedCheck("copy", func(*http.Request) error { return errors.New("a copy is 2m0s behind") }),
	}})
	if status, body := ask(t, mux, "/readyz?verbose"); status != http.StatusOK || strings.Contains(body, "copy") {
		t.Errorf("/readyz: %d %s", status, body)
	}
	if status, body := ask(t, mux, "/readyz/copy"); status != http.StatusInternalServerError {
		t.Errorf("/readyz/copy: %d %s", status, body)
	}
}

// Anonymous clients may ask as often as they like: the server asks the database once in
// each half of the timeout, and a client that disconnects does not fail the checks of
// others.
func TestStoreCheck_IsShared(t *testing.T) { synctest.Test(t, testStoreCheckIsShared) }

func testStoreCheckIsShared(t *testing.T) {
	asked, answer := 0, make(chan error)
	mux := http.NewServeMux()
	store, _ := process.StoreHealth(func(ctx context.Context) error {
		asked++
		select {
		case err := <-answer:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	process.InstallHealth(mux, process.HealthChecks{Always: []process.HealthChecker{store}})

	gone, leave := context.WithCancel(t.Context())
	statuses := make(chan int, 100)
	probe := func(ctx context.Context, path string) {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil))
		statuses <- w.Code
	}
	expect := func(n, status int) {
		t.Helper()
		for range n {
			if got := <-statuses; got != status {
				t.Errorf("status %d, want %d", got, status)
			}
		}
	}
	go probe(gone, "/livez")
	synctest.Wait()
	for range 30 {
		for _, path := range []string{"/livez", "/readyz", "/healthz"} {
			go probe(t.Context(), path)
		}
	}
	synctest.Wait()
	leave()
	answer <- nil
	expect(91, http.StatusOK)
	go probe(t.Context(), "/readyz")
	expect(1, http.StatusOK)
	if asked != 1 {
		t.Errorf("the database was asked %d times", asked)
	}

	time.Sleep(time.Second)
	go probe(t.Context(), "/livez")
	answer <- errors.New("gone")
	expect(1, http.StatusInternalServerError)
	go probe(t.Context(), "/readyz")
	expect(1, http.StatusInternalServerError)
	if asked != 2 {
		t.Errorf("the database was asked %d times", asked)
	}

	// A probe that gets no answer fails the check after its timeout.
	time.Sleep(time.Second)
	start := time.Now()
	go probe(t.Context(), "/livez")
	expect(1, http.StatusInternalServerError)
	if took := time.Since(start); took != 2*time.Second {
		t.Errorf("the check of a silent database took %s", took)
	}
}

// A panic in the probe fails the requests that share it; the next period probes again.
func TestStoreCheck_ProbePanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		panics := true
		started, release := make(chan struct{}), make(chan struct{})
		check, _ := process.StoreHealth(func(context.Context) error {
			if panics {
				close(started)
				<-release
				panic("probe")
			}
			return nil
		})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz", nil)
		recovered := make(chan any, 1)
		go func() {
			defer func() { recovered <- recover() }()
			_ = check.Check(r)
		}()
		<-started
		shared := make(chan error, 1)
		timed, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() { shared <- check.Check(r.WithContext(timed)) }()
		synctest.Wait()
		close(release)
		if reason := <-recovered; reason != "probe" {
			t.Errorf("the request that ran the probe recovered %v", reason)
		}
		if err := <-shared; err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a request that shared the probe got %v", err)
		}
		panics = false
		time.Sleep(5 * time.Second)
		if err := check.Check(r.WithContext(timed)); err != nil {
			t.Errorf("after the panic: %v", err)
		}
	})
}

func TestAllPass_FollowsTheChecks(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	checks := process.InstallHealth(http.NewServeMux(),
		process.HealthChecks{BootSequence: []process.HealthChecker{process.PostStartHook("late", gate)}})
	if process.AllPass(t.Context(), checks) {
		t.Error("a check of /readyz fails, and all pass")
	}
	close(gate)
	if !process.AllPass(t.Context(), checks) {
		t.Error("all checks pass, and one does not")
	}
}

// TestLivez_PassesWithoutTheKeyService: what a restart does not mend is no reason to restart.
func TestLivez_PassesWithoutTheKeyService(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	process.InstallHealth(mux, process.HealthChecks{NotLive: []process.HealthChecker{
		healthz.NamedCheck("kms-provider-0", func(*http.Request) error { return errors.New("away") }),
	}})
	for path, want := range map[string]int{"/livez": http.StatusOK, "/healthz": http.StatusInternalServerError,
		"/readyz": http.StatusInternalServerError} {
		if status, body := ask(t, mux, path); status != want {
			t.Errorf("%s: %d, want %d: %s", path, status, want, body)
		}
	}
}

// TestLivez_PassesDuringTheGracePeriod: a slow start does not fail /livez, which would make
// a kubelet restart the server.
func TestLivez_PassesDuringTheGracePeriod(t *testing.T) { synctest.Test(t, testLivezGracePeriod) }

func testLivezGracePeriod(t *testing.T) {
	mux := http.NewServeMux()
	process.InstallHealth(mux, process.HealthChecks{
		BootSequence:     process.PostStartHooks(make(chan struct{}), "never"),
		LivezGracePeriod: time.Minute,
	})
	expect := func(want map[string]int) {
		t.Helper()
		for path, status := range want {
			if got, body := ask(t, mux, path); got != status {
				t.Errorf("%s: %d %s, want %d", path, got, body, status)
			}
		}
	}
	expect(map[string]int{"/livez": http.StatusOK, "/healthz": http.StatusInternalServerError,
		"/readyz": http.StatusInternalServerError})
	time.Sleep(time.Minute)
	expect(map[string]int{"/livez": http.StatusInternalServerError})
}
