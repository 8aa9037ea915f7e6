package main

import (
	"context"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"byre/sqlstore/storetest"
)

// waitForEndpoints waits until the kubernetes Service leads to these addresses only.
func waitForEndpoints(t *testing.T, client kubernetes.Interface, want ...string) {
	t.Helper()
	storetest.EventuallyDone(t, "the endpoints of the kubernetes Service", func(ctx context.Context) (bool, error) {
		slice, err := client.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		if err != nil {
			return false, nil
		}
		var got []string
		for _, endpoint := range slice.Endpoints {
			got = append(got, endpoint.Addresses...)
		}
		slices.Sort(got)
		return slices.Equal(got, want), nil
	})
}

// TestShutdown_WatchesGoOnDuringTheDelay: with a grace period, watches continue during the
// delay and end after it, and the shutdown waits for them.
func TestShutdown_WatchesGoOnDuringTheDelay(t *testing.T) {
	t.Parallel()
	// A busy machine may need more than a delay to send the requests that belong into it.
	for _, delay := range []time.Duration{2 * time.Second, 10 * time.Second, time.Minute} {
		if testWatchDuringDelay(t, delay) {
			return
		}
	}
	t.Error("no delay was long enough for a write")
}

// testWatchDuringDelay returns false if the delay had ended before the test has written.
func testWatchDuringDelay(t *testing.T, delay time.Duration) bool {
	t.Helper()
	server := startServer(t, t.TempDir(), "--shutdown-delay-duration="+delay.String(), "--shutdown-watch-termination-grace-period=1m")
	client := kubernetes.NewForConfigOrDie(server.config(t))
	w, err := client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=late"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	began, config := time.Now(), server.config(t)
	if err := server.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for isReady := true; isReady; {
		status, _, err := get(t.Context(), config, "/readyz")
		if err != nil {
			return time.Since(began) < delay && failed(t, "/readyz during the delay: %v", err)
		}
		isReady = status != http.StatusInternalServerError
	}
	made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}}
	if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		return time.Since(began) < delay && failed(t, "a write during the delay: %v", err)
	}
	var got []watch.EventType
	for event := range w.ResultChan() {
		got = append(got, event.Type)
	}
	if took := time.Since(began); took < delay {
		t.Errorf("the watch ended after %v, before the delay of %v", took, delay)
	}
	if !slices.Equal(got, []watch.EventType{watch.Added}) {
		t.Errorf("the watch got %v", got)
	}
	if status := server.wait(t); status != 0 {
		t.Errorf("exit status is %d", status)
	}
	return true
}

// failed fails the test, and returns true.
func failed(t *testing.T, format string, args ...any) bool {
	t.Helper()
	t.Errorf(format, args...)
	return true
}

// TestShutdown_RefusesWhileDraining: while a request is still being answered, new requests
// are refused: with an error status under --shutdown-send-retry-after, and by a closed
// connection without it.
func TestShutdown_RefusesWhileDraining(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--shutdown-send-retry-after=true", "--shutdown-send-retry-after=false"} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			server := startServer(t, t.TempDir(), flag)
			config := server.config(t)
			hook := newSlowHook(t)
			hook.install(t, kubernetes.NewForConfigOrDie(config))
			created := make(chan error, 1)
			go func() {
				made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "slow"}}
				_, err := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default").Create(t.Context(), made, metav1.CreateOptions{})
				created <- err
			}()
			select {
			case <-hook.asked:
			case err := <-created:
				t.Fatalf("the webhook was not asked: %v", err)
			}
			if err := server.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			storetest.EventuallyDone(t, "new requests are refused", func(ctx context.Context) (bool, error) {
				return refuses(ctx, t, config, strings.HasSuffix(flag, "true"))
			})
			close(hook.answer)
			if err := <-created; err != nil {
				t.Errorf("the request in flight: %v", err)
			}
			if status := server.wait(t); status != 0 {
				t.Errorf("exit status is %d", status)
			}
		})
	}
}

// refuses reports whether a request on a new connection is refused in the expected way.
func refuses(ctx context.Context, t *testing.T, config *rest.Config, inWords bool) (bool, error) {
	if !inWords {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(config.Host, "https://"))
		if err == nil {
			_ = conn.Close() // the test needs only its acceptance
		}
		return err != nil, ctx.Err()
	}
	fresh := rest.CopyConfig(config)
	fresh.Proxy = http.ProxyFromEnvironment // a transport of its own, not a cached one
	client, err := rest.HTTPClientFor(fresh)
	if err != nil {
		return false, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/api/v1/namespaces/default", nil)
	if err != nil {
		return false, err
	}
	response, err := client.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusTooManyRequests && response.Header.Get("Retry-After") == "" {
		t.Error("429 without Retry-After")
	}
	return response.StatusCode == http.StatusTooManyRequests, nil
}

// slowHook is a webhook that reports each request and answers when it is told to.
type slowHook struct {
	*httptest.Server
	asked, answer chan struct{}
}

func newSlowHook(t *testing.T) *slowHook {
	hook := &slowHook{asked: make(chan struct{}, 1), answer: make(chan struct{})}
	hook.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hook.asked <- struct{}{}
		select {
		case <-hook.answer:
		case <-r.Context().Done():
		}
		http.Error(w, "no opinion", http.StatusInternalServerError)
	}))
	t.Cleanup(hook.Close)
	return hook
}

// install registers the webhook for ConfigMaps named "slow". It waits until the
// registration is in force: the same configuration refuses ConfigMaps named "probe".
func (h *slowHook) install(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	none, ignore := registrationv1.SideEffectClassNone, registrationv1.Ignore
	webhook := func(name string) registrationv1.ValidatingWebhook {
		return registrationv1.ValidatingWebhook{
			Name:          name + ".example.com",
			FailurePolicy: &ignore, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			TimeoutSeconds:  new(int32(30)), // the longest: the request is to be in flight until the test ends it
			MatchConditions: []registrationv1.MatchCondition{{Name: "name", Expression: "request.name == '" + name + "'"}},
			ClientConfig: registrationv1.WebhookClientConfig{
				URL:      &h.URL,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw}),
			},
			Rules: []registrationv1.RuleWithOperations{{
				Operations: []registrationv1.OperationType{registrationv1.Create},
				Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}
	}
	refused := webhook("probe")
	fail, unreachable := registrationv1.Fail, "https://127.0.0.1:1/"
	refused.FailurePolicy, refused.ClientConfig.URL = &fail, &unreachable
	configuration := &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "slow"},
		Webhooks:   []registrationv1.ValidatingWebhook{webhook("slow"), refused},
	}
	if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), configuration, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the webhooks are in force", func(ctx context.Context) (bool, error) {
		probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}
		_, err := client.CoreV1().ConfigMaps("default").Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil, nil
	})
}

// TestShutdown_DuringStart: a server that is told to stop while it waits for its database
// exits with status 0.
func TestShutdown_DuringStart(t *testing.T) {
	t.Parallel()
	silent, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	// A server that exits before it connects must not leave the test waiting.
	if err := silent.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	server := command(t, dir, "serve", "--data-dir", dir, "--secure-port=0",
		"--endpoint=postgres://byre@"+silent.Addr().String()+"/byre?sslmode=disable&connect_timeout=600")
	conn, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := server.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status := server.wait(t); status != 0 || strings.Contains(server.log.String(), "byre: ") {
		t.Errorf("exit status %d: %s", status, server.log.String())
	}
}
