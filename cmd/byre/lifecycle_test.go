package main

import (
	"context"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"byre/sqlstore/postgres/pgtest"
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
	server := startServer(t, t.TempDir(), "--shutdown-delay-duration="+delay.String(),
		"--shutdown-watch-termination-grace-period=1m")
	client := kubernetes.NewForConfigOrDie(server.config(t))
	w, err := client.CoreV1().ConfigMaps("default").Watch(t.Context(),
		metav1.ListOptions{FieldSelector: "metadata.name=late"})
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
				_, err := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default").Create(t.Context(), made,
					metav1.CreateOptions{})
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
				Rule: registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
					Resources: []string{"configmaps"}},
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
	if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), configuration,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the webhooks are in force", func(ctx context.Context) (bool, error) {
		probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}
		_, err := client.CoreV1().ConfigMaps("default").Create(ctx, probe,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
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

// A watch ends without an error. "timeout" sends its signal to the process and to its group: that is one signal.
func TestShutdown_WatchesEndCleanly(t *testing.T) {
	t.Parallel()
	server := startServer(t, t.TempDir())
	client := kubernetes.NewForConfigOrDie(server.config(t))
	w, err := client.CoreV1().Namespaces().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	started := time.Now()
	for range 2 {
		if err := server.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			t.Errorf("the watch ended with %v", event.Object)
		}
	}
	if status := server.wait(t); status != 0 {
		t.Errorf("exit status is %d", status)
	}
	// A server that waits for a watch waits for --request-timeout, a minute.
	if took := time.Since(started); took > 40*time.Second {
		t.Errorf("stopping took %v with nothing but a watch open", took)
	}
}

// During the delay, on which load balancers rely, the server is not ready and still serves. A second SIGTERM ends it.
func TestShutdown_ServesDuringTheDelayUntilASecondSIGTERM(t *testing.T) {
	t.Parallel()
	server := startServer(t, t.TempDir(), "--shutdown-delay-duration=10m")
	if err := server.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	config := server.config(t)
	storetest.EventuallyDone(t, "/readyz fails", func(ctx context.Context) (bool, error) {
		status, body, err := get(ctx, config, "/readyz")
		return status == http.StatusInternalServerError && strings.Contains(body, "[-]shutdown failed"), err
	})
	for path, want := range map[string]int{"/livez": http.StatusOK, "/api/v1/namespaces/default": http.StatusOK} {
		if status, body := server.mustGet(t, path); status != want {
			t.Errorf("%s during the delay: %d %s", path, status, body)
		}
	}
	made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}}
	if _, err := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default").Create(t.Context(), made,
		metav1.CreateOptions{}); err != nil {
		t.Errorf("a write during the delay: %v", err)
	}
	storetest.Eventually(t, "a later SIGTERM ends the process", func() bool {
		_ = server.cmd.Process.Signal(syscall.SIGTERM) // it may have exited
		select {
		case <-server.exited:
			return true
		default:
			return false
		}
	})
	if status := server.wait(t); status != 1 {
		t.Errorf("exit status is %d", status)
	}
}

// "timeout" sends its signal to the process and to its group.
func TestShutdown_ASignalSentTwiceIsOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		signals, over := make(chan os.Signal), make(chan struct{})
		begun, second := 0, make(chan bool, 1)
		go func() { second <- awaitSecond(signals, over, func() { begun++ }) }()
		for range 3 {
			signals <- syscall.SIGTERM
		}
		time.Sleep(sameSignal - time.Millisecond)
		signals <- syscall.SIGTERM
		synctest.Wait()
		if begun != 1 || len(second) > 0 {
			t.Errorf("%d shutdowns were begun, and the process has ended: %v", begun, len(second) > 0)
		}
		time.Sleep(time.Millisecond)
		signals <- syscall.SIGTERM
		if !<-second {
			t.Error("the second signal does not end the process")
		}
	})
}

// A server that is started at its quota tells systemd that it is ready: objects can be deleted
// then. It creates its own objects, such as those that a new version of it adds. Nodes and servers
// can create their Leases, and the log has one line of the quota.
func TestSystemd_IsReadyAtTheQuota(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := startServer(t, dir, "--database-quota=3Mi")
	client := kubernetes.NewForConfigOrDie(first.config(t))
	fillQuota(t, client)
	const binding = "kubeadm:apiserver-kubelet-client"
	if err := client.RbacV1().ClusterRoleBindings().Delete(t.Context(), binding, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	first.stop(t)
	receive, env := listenForSystemd(t)
	server := commandWith(t, env, dir, serveArgs(dir, "--database-quota=3Mi")...)
	if got := receive(); !strings.HasPrefix(got, "READY=1\n") {
		t.Fatalf("the first message is %q", got)
	}
	if status, body := server.mustGet(t, "/readyz/database-quota"); status != http.StatusInternalServerError {
		t.Errorf("/readyz/database-quota: %d %s", status, body)
	}
	client = kubernetes.NewForConfigOrDie(server.config(t))
	if _, err := client.RbacV1().ClusterRoleBindings().Get(t.Context(), binding, metav1.GetOptions{}); err != nil {
		t.Errorf("the server's own object: %v", err)
	}
	storetest.EventuallyDone(t, "the server has an identity Lease", func(ctx context.Context) (bool, error) {
		leases, err := client.CoordinationV1().Leases("kube-system").List(ctx,
			metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity"})
		return err == nil && len(leases.Items) == 1, err
	})
	node := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	if _, err := client.CoordinationV1().Leases("kube-node-lease").Create(t.Context(), node,
		metav1.CreateOptions{}); err != nil {
		t.Errorf("the Lease of a node: %v", err)
	}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "more"}}, metav1.CreateOptions{}); err == nil {
		t.Error("a Namespace is created at the quota")
	}
	// Before the stop, which may come while controllers start and log that they can't.
	if lines := server.loggedErrors(); len(lines) != 1 || !strings.Contains(lines[0], "reached its quota") {
		t.Errorf("the log has the errors %q", lines)
	}
}

// loggedErrors returns the lines of errors in the log.
func (p *serverProcess) loggedErrors() []string {
	return regexp.MustCompile("(?m)^E.*").FindAllString(p.log.String(), -1)
}

// A replica that is started at the quota gets back into the kubernetes Service, which it left when
// it stopped.
func TestReplicas_PublishEndpointsAtTheQuota(t *testing.T) {
	t.Parallel()
	flags := []string{"--endpoint", pgtest.DSN(t), "--cert-dir", t.TempDir(), "--database-quota=3Mi"}
	first := startServer(t, t.TempDir(), append(flags, "--advertise-address=192.0.2.1")...)
	dir, second := t.TempDir(), append(flags, "--advertise-address=192.0.2.2")
	stopped := startServer(t, dir, second...)
	client := kubernetes.NewForConfigOrDie(first.config(t))
	waitForEndpoints(t, client, "192.0.2.1", "192.0.2.2")
	fillQuota(t, client)
	stopped.stop(t)
	waitForEndpoints(t, client, "192.0.2.1")
	restarted := command(t, dir, serveArgs(dir, second...)...)
	waitForEndpoints(t, client, "192.0.2.1", "192.0.2.2")
	for _, line := range restarted.loggedErrors() {
		if !strings.Contains(line, "reached its quota") {
			t.Errorf("the log has the error %q", line)
		}
	}
}

// fillQuota creates objects until the quota is reached.
func fillQuota(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	storetest.Eventually(t, "the quota is reached", func() bool {
		_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
			// PostgreSQL would compress another text.
			ObjectMeta: metav1.ObjectMeta{GenerateName: "big-"}, Data: map[string]string{"a": randomText(500_000)},
		}, metav1.CreateOptions{})
		return err != nil
	})
}

// listenForSystemd makes the socket that systemd reads for Type=notify, and returns what reads the
// next message from it, and the environment of the program that writes to it.
func listenForSystemd(t *testing.T) (receive func() string, env []string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "notify") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return func() string {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
			t.Fatal(err)
		}
		message := make([]byte, 4096)
		n, err := conn.Read(message)
		if err != nil {
			t.Fatal(err)
		}
		return string(message[:n])
	}, []string{"NOTIFY_SOCKET=" + socket}
}

// TestSystemd_IsNotifiedOfStartLifeAndStop reads the socket that systemd reads for
// Type=notify and WatchdogSec=.
func TestSystemd_IsNotifiedOfStartLifeAndStop(t *testing.T) {
	t.Parallel()
	receive, env := listenForSystemd(t)
	data := t.TempDir()
	server := commandWith(t, append(env, "WATCHDOG_USEC=30000000"), data, serveArgs(data)...)
	if got := receive(); !strings.HasPrefix(got, "READY=1\nSTATUS=Serving on 127.0.0.1:") {
		t.Fatalf("the first message is %q", got)
	}
	if status, body := server.mustGet(t, "/readyz"); status != http.StatusOK {
		t.Errorf("/readyz after READY=1: %d %s", status, body)
	}
	for _, want := range []string{"WATCHDOG_USEC=30000000", "WATCHDOG=1"} {
		if got := receive(); got != want {
			t.Errorf("the message is %q, want %q", got, want)
		}
	}
	if status := server.stop(t); status != 0 {
		t.Errorf("exit status is %d", status)
	}
	got := receive()
	for got == "WATCHDOG=1" { // a slow machine sends several
		got = receive()
	}
	if !strings.HasPrefix(got, "STOPPING=1\n") {
		t.Errorf("the last message is %q", got)
	}
}
