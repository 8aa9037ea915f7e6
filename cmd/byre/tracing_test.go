package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// spanCollector is an OpenTelemetry collector that records the names of spans by trace.
type spanCollector struct {
	collector.UnimplementedTraceServiceServer
	address string

	mu    sync.Mutex
	spans map[string][]string
}

func (c *spanCollector) Export(_ context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
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
			tracing := fmt.Sprintf("apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: %s\nsamplingRatePerMillion: 0\n", c.address)
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
				Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}
	if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), configuration, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return parents
}
