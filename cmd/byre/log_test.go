package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// TestLog_OfAStartIsShort: without -v the log of a start names what started, the database
// and the readiness, and leaves out messages of upstream's packages.
func TestLog_OfAStartIsShort(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		server := startServer(t, t.TempDir(), flags...)
		storetest.Eventually(t, "the log says Ready", func() bool { return strings.Contains(server.log.String(), `"Ready"`) })
		if errors := regexp.MustCompile(`(?m)^E.*`).FindAllString(server.log.String(), -1); len(errors) > 0 {
			t.Errorf("errors of a first start: %q", errors)
		}
		if status := server.stop(t); status != 0 {
			t.Errorf("exit status %d", status)
		}
		log := server.log.String()
		for _, want := range []string{
			`I.* storage.go:\d+\] "Starting byre" version=".+" kubernetes="v1\.37\..*"`,
			`I.* storage.go:\d+\] "Opened database" database=".+" schema=[1-9]\d* revision=0`,
			`I.* server.go:\d+\] "Ready" address="127.0.0.1:\d+" kubeconfig=".*/admin.kubeconfig"`,
		} {
			if !regexp.MustCompile(want).MatchString(log) {
				t.Errorf("no line %s", want)
			}
		}
		if lines := len(regexp.MustCompile(`(?m)^I`).FindAllString(log, -1)); lines > 10 {
			t.Errorf("%d lines of information", lines)
		}
		if strings.Contains(log, "password") {
			t.Error("a secret is in the log")
		}
	})
}

// retried matches what upstream's controllers log as errors, in kube-controller-manager too, when
// they do a step again because of a write or a deletion that they had not yet seen.
var retried = regexp.MustCompile(
	`is not as new as written version|the object has been modified|failed with replicasets\.apps \\"[^"]+" not found`)

func TestRetried_MatchesWhatAClusterLogged(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		`replica_set.go:640] "Unhandled Error" err="sync \"default/web-7b\" failed with read version: 265 is not as new as written version: 276 for group resource replicasets.apps"`: true,
		`replica_set.go:640] "Unhandled Error" err="sync \"default/web-7b\" failed with replicasets.apps \"web-7b\" not found"`:                                                       true,
		`replica_set.go:640] "Unhandled Error" err="sync \"default/web-7b\" failed with replicasets.apps \"web-7b\" is forbidden"`:                                                    false,
	} {
		if got := retried.MatchString(line); got != want {
			t.Errorf("%s: %t", line, got)
		}
	}
}

// TestLog_OfAClusterHasNoErrors: two servers of one host share a database and run the controllers
// and the scheduler. A Deployment is rolled out and deleted, the leader stops, and the other one
// goes on: none of that is an error.
func TestLog_OfAClusterHasNoErrors(t *testing.T) {
	t.Parallel()
	flags := []string{"--endpoint", pgtest.DSN(t), "--cert-dir", t.TempDir(), "--with-scheduler",
		"--with-controller-manager"}
	first := startServer(t, t.TempDir(), flags...)
	leader := waitForLeader(t, kubernetes.NewForConfigOrDie(first.config(t)), "")
	second := startServer(t, t.TempDir(), flags...)
	client := kubernetes.NewForConfigOrDie(second.config(t))
	createReadyNode(t, client, "node1")
	deployments := client.AppsV1().Deployments("default")
	if _, err := deployments.Create(t.Context(), webDeployment("example.com/web:1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitRollout(t, client, "example.com/web:1")
	if err := deployments.Delete(t.Context(), "web",
		metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground)}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the Deployment is gone", func(ctx context.Context) (bool, error) {
		_, err := deployments.Get(ctx, "web", metav1.GetOptions{})
		return isGone(err)
	})
	if status := first.stop(t); status != 0 {
		t.Errorf("exit status of the first is %d", status)
	}
	waitForLeader(t, client, leader)
	makeAndDeleteNamespace(t, client, "after")
	if status := second.stop(t); status != 0 {
		t.Errorf("exit status of the second is %d", status)
	}
	for name, server := range map[string]*serverProcess{"first": first, "second": second} {
		lines := slices.DeleteFunc(errorLine.FindAllString(server.log.String(), -1), retried.MatchString)
		if len(lines) > 0 {
			t.Errorf("errors of the %s: %s", name, strings.Join(lines, "\n"))
		}
	}
}

// With -v=1 the log has upstream's messages too.
func TestLog_VerboseStartHasEverything(t *testing.T) {
	t.Parallel()
	server := startServer(t, t.TempDir(), "-v=1")
	// Controllers write it, which the readiness does not wait for.
	storetest.Eventually(t, "upstream's line is in the log", func() bool {
		server.mustRun(t)
		return strings.Contains(server.log.String(), "Caches are synced")
	})
}

// TestLog_HasNoPassword: neither the log, at any verbosity and in both formats, nor any
// endpoint of the server contains the password of the database. Every line in JSON is an
// object.
func TestLog_HasNoPassword(t *testing.T) {
	t.Parallel()
	const password = "Tr0ub4dor"
	for format, ready := range map[string]string{"text": `"Ready" address=`, "json": `"msg":"Ready"`} {
		t.Run(format, func(t *testing.T) {
			good, err := url.Parse(pgtest.DSN(t))
			if err != nil {
				t.Fatal(err)
			}
			good.User = url.UserPassword(good.User.Username(), password)
			dir := t.TempDir()
			server := command(t, dir, "serve", "--data-dir", dir, "--bind-address=127.0.0.1", "--secure-port=0",
				"--endpoint", good.String(), "--logging-format", format, "-v=10")
			storetest.Eventually(t, "the log says Ready", func() bool {
				server.mustRun(t)
				return strings.Contains(server.log.String(), ready)
			})
			for _, path := range []string{"/metrics", "/flagz", "/statusz", "/readyz?verbose"} {
				if _, body := server.mustGet(t, path); strings.Contains(body, password) {
					t.Errorf("the password is in %s", path)
				}
			}
			server.stop(t)
			log := server.log.String()
			if strings.Contains(log, password) {
				t.Error("the password is in the log")
			}
			for line := range strings.Lines(log) {
				if object := map[string]any{}; format == "json" &&
					(json.Unmarshal([]byte(line), &object) != nil || object["msg"] == nil) {
					t.Fatalf("a line of the log is not an object with a message: %q", line)
				}
			}
		})
	}
	for _, bad := range []string{
		"postgres://user:" + password + "@127.0.0.1:1/database",
		"host=127.0.0.1 port=1 user=user password=" + password,
		"postgres://user:" + password + "@127.0.0.1:1/database?sslcert=/no/such/file&sslkey=/no/such/file",
		"postgres://user:" + password + "@127.0.0.1:port/database",
	} {
		for _, args := range [][]string{{"serve", "-v=10", "--data-dir", t.TempDir()}, {"status", "--data-dir", t.TempDir()},
			{"migrate", "status"}, {"backup", "-"}} {
			p := command(t, "", append(args, "--endpoint", bad)...)
			if status := p.wait(t); status == 0 || strings.Contains(p.log.String(), password) {
				t.Errorf("byre %s with %s: status %d, %q", args[0], bad, status, p.log)
			}
		}
	}
}

// TestLog_LimitsRepeatedLines: a webhook that fails at every request and a client without a
// valid token take some lines of the log, not one a request, in both formats.
func TestLog_LimitsRepeatedLines(t *testing.T) {
	const requests, most = 150, 60
	for format, ready := range map[string]string{"text": `"Ready" address=`, "json": `"msg":"Ready"`} {
		t.Run(format, func(t *testing.T) {
			dir := t.TempDir()
			server := command(t, dir, serveArgs(dir, "--logging-format", format, "-v=2")...)
			storetest.Eventually(t, "the log says Ready", func() bool {
				server.mustRun(t)
				return strings.Contains(server.log.String(), ready)
			})
			config := server.config(t)
			config.QPS = -1 // no limit
			client := kubernetes.NewForConfigOrDie(config)
			hook := newSlowHook(t)
			hook.install(t, client)
			stranger := rest.AnonymousClientConfig(config)
			stranger.BearerToken = "wrong"
			for range requests {
				probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe"}} // the webhook's rules match this name
				if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), probe,
					metav1.CreateOptions{}); !apierrors.IsInternalError(err) {
					t.Fatalf("the webhook's failure is %v", err)
				}
				if status, _, err := get(t.Context(), stranger, "/api"); err != nil || status != http.StatusUnauthorized {
					t.Fatalf("a wrong token: status %d, %v", status, err)
				}
			}
			log := server.log.String()
			for _, message := range []string{"failed calling webhook", "Unable to authenticate the request"} {
				if n := strings.Count(log, message); n == 0 || n > most {
					t.Errorf("%d requests make %d lines with %q", requests, n, message)
				}
			}
		})
	}
}

// The log of a server with controllers, whose database is away until they have lost their Lease, and that goes on
// then, names the database once. What their requests in that moment run into, upstream's packages log.
func TestLog_OfAnOutageNamesItsCause(t *testing.T) {
	t.Parallel()
	cluster, err := pgtest.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Stop() }) // it says which signal ended the server
	server := startServer(t, t.TempDir(), "--endpoint", cluster.DSN("postgres"), "--with-controller-manager",
		"--with-scheduler")
	client := kubernetes.NewForConfigOrDie(server.config(t))
	waitForLeader(t, client, "")
	createReadyNode(t, client, "node1")
	if _, err := client.AppsV1().Deployments("default").Create(t.Context(), webDeployment("example.com/web:1"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitRollout(t, client, "example.com/web:1")
	if lines := errorLine.FindAllString(server.log.String(), -1); len(lines) > 0 {
		t.Errorf("errors of a healthy server:\n%s", strings.Join(lines, "\n"))
	}
	if err := cluster.Halt(); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "a write is refused, which its client repeats ten times", func() bool {
		_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"}}, metav1.CreateOptions{})
		return err != nil
	})
	if err := cluster.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitForLeader(t, client, "")
	storetest.EventuallyDone(t, "the controllers go on", func(ctx context.Context) (bool, error) {
		deployment, err := client.AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if deployment.Spec.Template.Spec.Containers[0].Image == "example.com/web:1" {
			deployment.Spec.Template.Spec.Containers[0].Image = "example.com/web:2"
			_, err = client.AppsV1().Deployments("default").Update(ctx, deployment, metav1.UpdateOptions{})
			return false, err
		}
		return deployment.Status.ObservedGeneration == deployment.Generation, nil
	})
	lines := errorLine.FindAllString(server.log.String(), -1) // a stop cancels what upstream's controllers still repeat
	if status := server.stop(t); status != 0 {
		t.Errorf("exit status %d", status)
	}
	named := 0
	for _, line := range lines {
		if strings.Contains(line, "store: the database") {
			named++
		}
	}
	// A request of upstream's that ends at the wrong moment may have a line of its own.
	if named != 1 || len(lines) > 3 {
		t.Errorf("errors of an outage:\n%s", strings.Join(lines, "\n"))
	}
}

// spanCollector is an OpenTelemetry collector that records the names of spans by trace.
type spanCollector struct {
	collector.UnimplementedTraceServiceServer
	address string

	mu    sync.Mutex
	spans map[string][]string
}

func (c *spanCollector) Export(
	_ context.Context, request *collector.ExportTraceServiceRequest,
) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range request.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, span := range scope.Spans {
				trace := hex.EncodeToString(span.TraceId)
				c.spans[trace] = append(c.spans[trace], span.Name)
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func (c *spanCollector) has(trace string, names ...string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		found := false
		for _, span := range c.spans[trace] {
			found = found || strings.Contains(span, name)
		}
		if !found {
			return false
		}
	}
	return true
}

func newSpanCollector(t *testing.T) *spanCollector {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &spanCollector{address: listener.Addr().String(), spans: map[string][]string{}}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, c)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // Stop ends it
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	return c
}

// TestTracing_SpansCrossTheServer: the trace of a sampled request has spans of the filters,
// the verb and the database, and continues in the webhook that the server calls.
func TestTracing_SpansCrossTheServer(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"sqlite": nil, "postgres": {"--endpoint", pgtest.DSN(t)}} {
		t.Run(name, func(t *testing.T) {
			c := newSpanCollector(t)
			file := filepath.Join(t.TempDir(), "tracing.yaml")
			tracing := fmt.Sprintf(
				"apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: %s\nsamplingRatePerMillion: 0\n",
				c.address)
			if err := os.WriteFile(file, []byte(tracing), 0o600); err != nil {
				t.Fatal(err)
			}
			server := startServer(t, t.TempDir(), append(flags, "--tracing-config-file", file)...)
			config := privileged(t, server)
			parents := hookParents(t, kubernetes.NewForConfigOrDie(config))
			var trace string
			// The webhook is asked for the ConfigMaps that controllers create too.
			storetest.EventuallyDone(t, "the webhook is asked in the trace", func(ctx context.Context) (bool, error) {
				trace = traced(ctx, t, config, http.MethodPost, "/api/v1/namespaces/default/configmaps",
					`{"metadata":{"generateName":"traced-"}}`)
				for {
					select {
					case parent := <-parents:
						if strings.HasPrefix(parent, "00-"+trace) {
							return true, nil
						}
					default:
						return false, nil
					}
				}
			})
			read := traced(t.Context(), t, config, http.MethodGet, "/api/v1/namespaces/default/configmaps/kube-root-ca.crt", "")
			if status := server.stop(t); status != 0 { // the stop sends the last spans
				t.Errorf("exit status is %d", status)
			}
			if !c.has(trace, "POST /api/v1/", "authorization", "Create", "HTTP POST", "Database Commit") {
				t.Errorf("spans of a create: %q", c.spans[trace])
			}
			// A read asks the database for the revision, or for the object if the resource
			// is not in memory yet.
			if !c.has(read, "GET /api/v1/", "Get") || name == "postgres" && !c.has(read, "Database ") {
				t.Errorf("spans of a read: %q", c.spans[read])
			}
		})
	}
}

// privileged returns the configuration of a client in system:masters, of whom alone upstream
// continues a trace (apiserver/pkg/endpoints/filters/traces.go).
func privileged(t *testing.T, server *serverProcess) *rest.Config {
	t.Helper()
	status, out, errOut := call("kubeconfig", "--user=root", "--group=system:masters", "--data-dir", server.dir)
	if status != 0 {
		t.Fatal(errOut)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	config.Host = server.config(t).Host
	return config
}

// traced sends a request that is part of a sampled trace, and returns the trace.
func traced(ctx context.Context, t *testing.T, config *rest.Config, method, path, body string) string {
	t.Helper()
	id := make([]byte, 24)
	if _, err := rand.Read(id); err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(ctx, method, config.Host+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	trace := hex.EncodeToString(id[:16])
	request.Header.Set("Traceparent", "00-"+trace+"-"+hex.EncodeToString(id[16:])+"-01")
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close() // the test needs only the trace
	return trace
}

// hookParents registers a webhook for ConfigMaps and returns the trace contexts of the
// requests that it gets.
func hookParents(t *testing.T, client kubernetes.Interface) <-chan string {
	t.Helper()
	parents := make(chan string, 1000)
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parents <- r.Header.Get("Traceparent")
		http.Error(w, "no opinion", http.StatusInternalServerError)
	}))
	t.Cleanup(hook.Close)
	none, ignore := registrationv1.SideEffectClassNone, registrationv1.Ignore
	configuration := &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "traced"},
		Webhooks: []registrationv1.ValidatingWebhook{{
			Name: "traced.example.com", FailurePolicy: &ignore, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: registrationv1.WebhookClientConfig{
				URL:      &hook.URL,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}),
			},
			Rules: []registrationv1.RuleWithOperations{{
				Operations: []registrationv1.OperationType{registrationv1.Create},
				Rule: registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
					Resources: []string{"configmaps"}},
			}},
		}},
	}
	if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), configuration,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return parents
}
