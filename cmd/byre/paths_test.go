package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"byre/apiserver/envtest/standin"
)

func TestPaths_OutsideTheAPI(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	tests := []struct {
		path   string
		status int
		want   []string
	}{
		{"/livez", 200, []string{"ok"}},
		{"/healthz", 200, []string{"ok"}},
		{"/readyz", 200, []string{"ok"}},
		{"/readyz?verbose", 200,
			[]string{"[+]ping ok", "[+]log ok", "[+]etcd ok", "[+]etcd-readiness ok", "[+]informer-sync ok", "[+]shutdown ok",
				"[+]poststarthook/rbac/bootstrap-roles ok", "readyz check passed"}},
		{"/livez?verbose", 200, []string{"[+]ping ok", "[+]log ok", "[+]etcd ok", "livez check passed"}},
		{"/livez?verbose&exclude=etcd", 200, []string{"[+]etcd excluded: ok"}},
		{"/livez?verbose&exclude=nosuch", 200,
			[]string{`warn: some health checks cannot be excluded: no matches for "nosuch"`}},
		{"/readyz/etcd-readiness", 200, []string{"ok"}},
		{"/livez/ping", 200, []string{"ok"}},
		{"/readyz/shutdown", 200, []string{"ok"}},
		{"/readyz/nosuch", 404, nil},
		{"/metrics", 200, []string{
			"apiserver_request_total", "byre_store_", "go_goroutines", "process_resident_memory_bytes", "kubernetes_build_info{",
			`etcd_request_duration_seconds_count{group="",operation="create",resource="namespaces"}`,
			`etcd_request_duration_seconds_count{group="",operation="get",resource="servicenodeportallocations"}`,
			"rest_client_requests_total{", "rest_client_request_duration_seconds_bucket{", "serviceaccount_valid_tokens_total",
			"serviceaccount_stale_tokens_total", "workqueue_depth{",
		}},
		{"/metrics/slis", 200, []string{"kubernetes_healthcheck"}},
		{"/debug/pprof/", 200, []string{"goroutine"}},
		{"/statusz", 200, []string{"apiserver statusz", "Binary version", "1.37.2", "/flagz", "/statusz"}},
		{"/flagz", 200, []string{"apiserver flagz", "secure-port", "endpoint"}},
		{"/debug/flags/v", 406, []string{"unsupported http method"}},
		{"/version", 200, []string{`"major": "1"`, `"minor": "37"`, `"gitVersion": "v1.37.2`}},
		{"/.well-known/openid-configuration", 200, []string{"jwks_uri"}},
		{"/openid/v1/jwks", 200, []string{`"keys"`}},
		{"/openapi/v3", 200, []string{"apis/apps/v1"}},
		{"/nosuch", 404, []string{"404 page not found"}},
		{"/api/v1/nosuch", 404, []string{"404"}},
	}
	for _, test := range tests {
		status, body := server.mustGet(t, test.path)
		if status != test.status {
			t.Errorf("%s: status %d, want %d: %s", test.path, status, test.status, body)
		}
		for _, want := range test.want {
			if !strings.Contains(body, want) {
				t.Errorf("%s: no %q in the answer", test.path, want)
			}
		}
	}
}

func TestPaths_IndexListsThem(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	_, body := server.mustGet(t, "/")
	var index struct{ Paths []string }
	if err := json.Unmarshal([]byte(body), &index); err != nil {
		t.Fatal(err)
	}
	paths := make(map[string]bool)
	for _, path := range index.Paths {
		paths[path] = true
	}
	for _, want := range []string{
		"/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/apis/apiextensions.k8s.io/v1",
		"/apis/apiregistration.k8s.io/v1",
		"/healthz", "/livez/ping", "/readyz/etcd", "/metrics", "/openapi/v2", "/openapi/v3", "/version", "/openid/v1/jwks",
	} {
		if !paths[want] {
			t.Errorf("the index has no %s", want)
		}
	}
}

func TestPaths_OpenToAnonymous(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	host := server.config(t).Host
	tests := []struct {
		path   string
		status int
	}{
		{"/livez", http.StatusOK},
		{"/readyz", http.StatusOK},
		{"/version", http.StatusOK},
		{"/api", http.StatusForbidden},
		{"/metrics", http.StatusForbidden},
		{"/debug/pprof/heap", http.StatusForbidden},
		{"/api/v1/secrets", http.StatusForbidden},
		{"/", http.StatusForbidden},
	}
	for _, test := range tests {
		status, body, err := fetch(t.Context(), anonymous(), host+test.path)
		if err != nil {
			t.Fatal(err)
		}
		if status != test.status {
			t.Errorf("%s: status %d, want %d: %s", test.path, status, test.status, body)
		}
		if status != http.StatusForbidden {
			continue
		}
		var answer struct{ Kind, Status, Reason string }
		if err := json.Unmarshal([]byte(body), &answer); err != nil || answer.Kind != "Status" ||
			answer.Reason != "Forbidden" {
			t.Errorf("%s: the answer is %s", test.path, body)
		}
	}
}

// freePort returns a port of 127.0.0.1 that nobody listens on: --insecure-port=0 opens no
// port.
func freePort(t *testing.T) string {
	t.Helper()
	port, err := standin.TakePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestInsecurePort_ServesHealthAndMetrics(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	// The insecure port answers every request, even if the authorizer denies all.
	server := startServer(t, t.TempDir(), "--insecure-port", port, "--authorization-mode=AlwaysDeny", "--profiling=false",
		"--feature-gates=ComponentFlagz=false,ComponentStatusz=false,APIServerIdentity=false,UnknownVersionInteroperabilityProxy=false")
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: "http://127.0.0.1:" + port})

	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
		&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if user := review.Status.UserInfo; user.Username != "system:unsecured" ||
		!strings.Contains(strings.Join(user.Groups, ","), "system:masters") {
		t.Errorf("the user of a request to the insecure port is %v", user)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"k": "v"}}
	if _, err := client.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Errorf("a write: %v", err)
	}
	watch, err := client.CoreV1().Secrets("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()

	rebound, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		"http://127.0.0.1:"+port+"/api/v1/namespaces/default/secrets/s", nil)
	if err != nil {
		t.Fatal(err)
	}
	rebound.Host = "rebound.example:" + port
	answer, err := http.DefaultClient.Do(rebound)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusForbidden {
		t.Errorf("a request for another host is answered with %s", answer.Status)
	}
	t.Run("what is off", func(t *testing.T) { checkOff(t, "http://127.0.0.1:"+port, client) })
	if !strings.Contains(server.log.String(), "without TLS and without credentials on 127.0.0.1:"+port) {
		t.Error("there is no warning in the log")
	}
	if status := server.stop(t); status != 0 {
		t.Errorf("exit status is %d", status)
	}
}

// checkOff: without profiling, and with upstream's feature gates off, their pages and the identity Lease do not exist,
// and nobody can reset the metrics.
func checkOff(t *testing.T, url string, client kubernetes.Interface) {
	do := func(method, path string) (int, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
	for _, path := range []string{
		"/debug/pprof/", "/debug/pprof/heap", "/debug/flags/v",
		"/statusz", "/flagz", "/readyz/poststarthook/start-kube-apiserver-identity-lease-controller",
	} {
		if status, body := do(http.MethodGet, path); status != http.StatusNotFound {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	for _, path := range []string{"/metrics", "/metrics/slis"} {
		if status, body := do(http.MethodDelete, path); status != http.StatusOK || strings.Contains(body, "metrics reset") {
			t.Errorf("DELETE %s: %d, %.40s", path, status, body)
		}
	}
	leases, err := client.CoordinationV1().Leases("kube-system").List(t.Context(),
		metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity"})
	if err != nil || len(leases.Items) > 0 {
		t.Errorf("there are Leases: %v, %v", leases, err)
	}
}

func TestInsecurePort_RefusesWrongAddresses(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, taken, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"--insecure-bind-address must be a loopback address, not 0.0.0.0": {"--insecure-port=8080",
			"--insecure-bind-address=0.0.0.0"},
		"127.0.0.1:" + taken +
			" is in use by another program: stop it, or choose another --insecure-port": {"--insecure-port=" + taken},
	} {
		dir := t.TempDir()
		p := command(t, dir,
			append([]string{"serve", "--data-dir", dir, "--bind-address=127.0.0.1", "--secure-port=0"}, args...)...)
		if status := p.wait(t); status != 1 {
			t.Errorf("%v: exit status is %d", args, status)
		}
		out := strings.TrimSpace(p.log.String())
		if at := strings.LastIndex(out, "byre: "); at < 0 || !strings.Contains(out[at:], want) ||
			strings.Contains(out[at:], "\n") {
			t.Errorf("%v: output is %q, want %q", args, out, want)
		}
	}
}
