package aggregator_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/net/websocket"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/endpoints/request"
	apiserverproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/transport"
	"k8s.io/component-base/tracing"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"byre/aggregator"
	"byre/apiserver/apitest"
	"byre/apiserver/process"
)

// get sends a GET request and returns the status, the body and the header of the answer.
func get(t testing.TB, url string, header ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	return do(t, req)
}

func do(t testing.TB, req *http.Request) (int, string, http.Header) {
	t.Helper()
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body), response.Header
}

// TestProxy_SendsTheIdentityOfTheClient: the backend gets the user's identity from this
// server only, which authenticates with its client certificate. Identity headers that the
// client sent are removed.
func TestProxy_SendsTheIdentityOfTheClient(t *testing.T) {
	t.Parallel()
	s := start(t)
	seen := make(chan *http.Request, 1)
	b := newBackend(t, s, "widgets",
		newAPI("widgets").serve("/widgets/{name}", func(w http.ResponseWriter, req *http.Request) {
			seen <- req
			_, _ = io.WriteString(w, "hello")
		}))
	b.available(t, s)
	status, body, _ := get(t, b.url(s, "/widgets/first?b=2&a=1"),
		"X-Remote-User", "admin", "X-Remote-Uid", "0", "X-Remote-Group", "system:masters", "X-Remote-Extra-Scopes", "all",
		"x-remote-extra-other", "all", "Audit-ID", "chosen", "X-Other", "kept")
	if status != http.StatusOK || body != "hello" {
		t.Fatalf("%d %s", status, body)
	}
	req := <-seen
	if len(req.TLS.PeerCertificates) == 0 || req.TLS.PeerCertificates[0].Subject.CommonName != "front-proxy-client" {
		t.Error("the server did not show its certificate")
	}
	got := http.Header{}
	for name, values := range req.Header {
		if strings.HasPrefix(name, "X-Remote-") || name == "X-Other" {
			got[name] = values
		}
	}
	want := http.Header{
		"X-Remote-User":         {"tess"},
		"X-Remote-Uid":          {"t-1"},
		"X-Remote-Group":        {"testers", "system:authenticated"},
		"X-Remote-Extra-Scopes": {"a", "b"},
		"X-Remote-Extra-Example.com%2fmixed%20case": {"c"},
		"X-Other": {"kept"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if req.URL.Path != "/apis/widgets.example.com/v1/widgets/first" || req.URL.RawQuery != "a=1&b=2" {
		t.Errorf("asked for %s", req.URL)
	}
}

// upstreamProxy proxies to a host as kube-aggregator does
// (k8s.io/kube-aggregator/pkg/apiserver/handler_proxy.go).
func upstreamProxy(host string, next http.RoundTripper) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		u, _ := request.UserFrom(req.Context())
		location := &url.URL{Scheme: "https", Host: host, Path: req.URL.Path, RawQuery: req.URL.Query().Encode()}
		outgoing, done := apiserverproxy.NewRequestForProxy(location, req)
		defer done()
		carrier := transport.NewAuthProxyRoundTripper(u.GetName(), u.GetUID(), u.GetGroups(), u.GetExtra(), next)
		handler := proxy.NewUpgradeAwareHandler(location, carrier, true, false, nil)
		handler.RejectForwardingRedirects = true
		handler.ServeHTTP(w, outgoing)
	}
}

// TestProxy_EqualsUpstreams sends the same requests through the aggregator and through
// upstream's handler: the backend sees the same request, and the client the same answer.
func TestProxy_EqualsUpstreams(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := newBackend(t, s, "widgets", newAPI("widgets").
		serve("/widgets/{name...}", func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			for _, name := range []string{"Access-Control-Allow-Origin", "Access-Control-Allow-Methods", "Connection",
				"X-Kept"} {
				w.Header().Set(name, "X-Dropped")
			}
			w.Header().Set("X-Dropped", "1")
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Trailer", "X-Trailer")
			_ = json.NewEncoder(w).Encode(map[string]any{
				"method": req.Method, "host": req.Host, "url": req.URL.String(), "header": req.Header, "length": req.ContentLength,
			})
			w.Header().Set("X-Trailer", "last")
		}).
		serve("/page", func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = io.WriteString(w,
				`<html><a href="/apis/widgets.example.com/v1/widgets">all</a><a href="https://`+req.Host+`/x">x</a></html>`)
		}).
		serve("/moved", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/apis/elsewhere")
			w.WriteHeader(http.StatusFound)
		}))
	b.available(t, s)
	client := b.Client().Transport.(*http.Transport).Clone()
	client.TLSClientConfig.InsecureSkipVerify = true //nolint:gosec // a test's own server
	client.DisableCompression = true                 // as client-go's transports of backends
	defer client.CloseIdleConnections()
	upstream := httptest.NewServer(apitest.WithContext(upstreamProxy(b.Listener.Addr().String(), client), tester))
	defer upstream.Close()

	for _, test := range []struct {
		name, method, path string
		header             http.Header
	}{
		{"plain", http.MethodGet, "/widgets/first", nil},
		{"query", http.MethodGet, "/widgets/first?b=2&a=1&c", nil},
		{"bad query", http.MethodGet, "/widgets/first?a=%zz&b=1;c=2", nil},
		{"escaped path", http.MethodGet, "/widgets/bel%2Fla%20b", nil},
		{"trailing slash", http.MethodGet, "/widgets/first/", nil},
		{"forwarded", http.MethodGet, "/widgets/first", http.Header{
			"Forwarded": {"for=192.0.2.9"}, "X-Forwarded-For": {"192.0.2.9", "192.0.2.8"}, "X-Forwarded-Host": {"a"},
			"X-Forwarded-Proto": {"b"}, "X-Forwarded-Uri": {"c"},
		}},
		{"hop by hop", http.MethodGet, "/widgets/first", http.Header{
			"Connection": {"X-Remote-User, X-Remote-Group, X-Mine"}, "X-Mine": {"1"}, "Te": {"trailers"}, "Keep-Alive": {"1"},
			"Proxy-Authorization": {"x"},
		}},
		{"identity", http.MethodGet, "/widgets/first", http.Header{
			"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}, "X-Remote-Extra-Mine": {"1"},
			"X-Remote-Uid": {"0"}, "Impersonate-User": {"x"}, "Authorization": {"Bearer x"},
		}},
		{"no user agent", http.MethodGet, "/widgets/first", http.Header{"User-Agent": nil}},
		{"write", http.MethodPut, "/widgets/first", http.Header{"Content-Type": {"application/json"}}},
		{"html", http.MethodGet, "/page", nil},
		{"redirect", http.MethodGet, "/moved", nil},
		{"not found", http.MethodGet, "/nothing", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var answers [2]map[string]any
			for i, front := range []string{upstream.URL, s.front.URL} {
				req, err := http.NewRequestWithContext(t.Context(), test.method, front+"/apis/widgets.example.com/v1"+test.path,
					nil)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("User-Agent", "tester")
				maps.Copy(req.Header, test.header)
				status, body, header := do(t, req)
				header.Del("Date")
				header.Del("Audit-Id") // random
				var echo map[string]any
				if json.Unmarshal([]byte(body), &echo) == nil {
					body = ""
					echo["header"].(map[string]any)["Audit-Id"] = nil // random
				}
				answers[i] = map[string]any{"status": status, "header": header, "body": body, "echo": echo}
			}
			if diff := cmp.Diff(answers[0], answers[1]); diff != "" {
				t.Errorf("(-upstream +byre):\n%s", diff)
			}
		})
	}
}

// waitFor waits until a channel is closed or has a value. Its limit is much longer than a
// busy machine takes: only a failing test reaches it.
func waitFor[T any](t testing.TB, what string, happened <-chan T) {
	t.Helper()
	select {
	case <-happened:
	case <-time.After(time.Minute):
		t.Fatalf("%s: this did not happen", what)
	}
}

// TestProxy_StreamsWatches: an event reaches the client when it is sent, and the
// backend sees at once that the client has gone.
func TestProxy_StreamsWatches(t *testing.T) {
	t.Parallel()
	s := start(t)
	events, gone := make(chan string), make(chan struct{})
	b := newBackend(t, s, "widgets", newAPI("widgets").serve("/widgets", func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json;stream=watch")
		flusher := http.NewResponseController(w)
		for {
			if err := flusher.Flush(); err != nil {
				return
			}
			select {
			case event := <-events:
				_, _ = io.WriteString(w, event+"\n")
			case <-req.Context().Done():
				close(gone)
				return
			}
		}
	}))
	b.available(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.url(s, "/widgets?watch=true"), nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	for i := range 3 {
		event := fmt.Sprintf(`{"type":"ADDED","n":%d}`, i)
		events <- event
		// The test sends the next event only after it has read this one: a proxy that
		// waited for more bytes would deliver neither.
		if line, err := lines.ReadString('\n'); err != nil || line != event+"\n" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	cancel()
	waitFor(t, "the backend sees that the client has gone", gone)
}

// TestProxy_PassesBodiesBothWays: bodies of any size pass in both directions, and a
// compressed answer passes unchanged.
func TestProxy_PassesBodiesBothWays(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	s := start(t)
	big := make([]byte, 20<<20)
	if _, err := rand.Read(big); err != nil {
		t.Fatal(err)
	}
	b := newBackend(t, s, "widgets", newAPI("widgets").
		serve("/echo", func(w http.ResponseWriter, req *http.Request) {
			body, err := io.ReadAll(req.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			w.Header().Set("X-Length", fmt.Sprint(req.ContentLength))
			_, _ = w.Write(body)
		}).
		serve("/packed", func(w http.ResponseWriter, req *http.Request) {
			if !strings.Contains(req.Header.Get("Accept-Encoding"), "gzip") {
				http.Error(w, "not asked for", http.StatusNotAcceptable)
				return
			}
			w.Header().Set("Content-Encoding", "gzip")
			packed := gzip.NewWriter(w)
			_, _ = io.WriteString(packed, "hello")
			_ = packed.Close()
		}))
	b.available(t, s)
	for name, body := range map[string]io.Reader{
		"known length": bytes.NewReader(big),
		"chunked":      struct{ io.Reader }{bytes.NewReader(big)},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url(s, "/echo"), body)
		if err != nil {
			t.Fatal(err)
		}
		status, echo, header := do(t, req)
		if status != http.StatusOK || sha256.Sum256([]byte(echo)) != sha256.Sum256(big) {
			t.Errorf("%s: %d, %d bytes", name, status, len(echo))
		}
		if want := fmt.Sprint(req.ContentLength); name == "known length" && header.Get("X-Length") != want {
			t.Errorf("the backend saw a length of %s, want %s", header.Get("X-Length"), want)
		}
	}
	status, packed, header := get(t, b.url(s, "/packed"), "Accept-Encoding", "gzip")
	if status != http.StatusOK || header.Get("Content-Encoding") != "gzip" {
		t.Fatalf("%d %v", status, header)
	}
	reader, err := gzip.NewReader(strings.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(reader); err != nil || string(text) != "hello" {
		t.Errorf("%q %v", text, err)
	}
	if status, text, _ := get(t, b.url(s, "/packed")); status != http.StatusOK || text != "hello" {
		t.Errorf("to a client that says nothing: %d %q", status, text)
	}
}

// TestProxy_UpgradesToWebSocket: an upgraded connection joins client and backend, carries
// the client's identity, and ends when either side ends it.
func TestProxy_UpgradesToWebSocket(t *testing.T) {
	t.Parallel()
	s := start(t)
	ended := make(chan error, 1)
	b := newBackend(t, s, "widgets",
		newAPI("widgets").serve("/talk", websocket.Server{Handler: func(conn *websocket.Conn) {
			_, _ = fmt.Fprintf(conn, "%s %s", conn.Request().Header["X-Remote-User"], conn.Request().Header["X-Remote-Group"])
			_, err := io.Copy(conn, conn)
			ended <- err
		}}.ServeHTTP))
	b.available(t, s)
	// Upstream's filters end the request's context after --request-timeout, and the connection lives on.
	ends := make(chan context.CancelFunc, 1)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx, end := context.WithCancel(req.Context())
		defer end()
		ends <- end
		s.front.Config.Handler.ServeHTTP(w, req.WithContext(ctx))
	}))
	defer front.Close()
	config, err := websocket.NewConfig("ws"+strings.TrimPrefix(front.URL, "http")+strings.TrimPrefix(b.url(s, "/talk"),
		s.front.URL), "http://localhost")
	if err != nil {
		t.Fatal(err)
	}
	config.Header.Set("X-Remote-User", "admin")
	conn, err := config.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	expect(t, conn, "[tess] [testers system:authenticated]")
	(<-ends)()
	for range 3 {
		time.Sleep(10 * time.Millisecond)
		if _, err := io.WriteString(conn, "hello"); err != nil {
			t.Fatal(err)
		}
		expect(t, conn, "hello")
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	waitFor(t, "the backend sees that the client has gone", ended)
}

func expect(t testing.TB, r io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Fatalf("%q, %v, want %q", got, err, want)
	}
}

// dialSPDY upgrades a POST request to SPDY. The connection ends with the test.
func dialSPDY(t *testing.T, target string) httpstream.Connection {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, target, nil)
	if err != nil {
		t.Fatal(err)
	}
	carrier, err := spdy.NewRoundTripper(nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: carrier}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	conn, err := carrier.NewConnection(response)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// TestProxy_UpgradesToSPDY: the proxy carries the SPDY streams of requests such as kubectl
// exec.
func TestProxy_UpgradesToSPDY(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := newBackend(t, s, "widgets", newAPI("widgets").serve("/talk", func(w http.ResponseWriter, req *http.Request) {
		streams := make(chan httpstream.Stream, 1)
		conn := spdy.NewResponseUpgrader().UpgradeResponse(w, req, func(stream httpstream.Stream, _ <-chan struct{}) error {
			streams <- stream
			return nil
		})
		if conn == nil {
			return
		}
		defer conn.Close()
		stream := <-streams
		_, _ = io.WriteString(stream, stream.Headers().Get("name")+" ")
		_, _ = io.Copy(stream, stream)
	}))
	b.available(t, s)
	at, err := url.Parse(b.url(s, "/talk"))
	if err != nil {
		t.Fatal(err)
	}
	conn := dialSPDY(t, at.String())
	stream, err := conn.CreateStream(http.Header{"Name": {"first"}})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, stream, "first ")
	for range 3 {
		if _, err := io.WriteString(stream, "hello"); err != nil {
			t.Fatal(err)
		}
		expect(t, stream, "hello")
	}
}

// TestProxy_ClosesAnAbandonedUpgrade: a client that gives up before the backend has
// answered its upgrade does not leave a connection open.
func TestProxy_ClosesAnAbandonedUpgrade(t *testing.T) {
	t.Parallel()
	s := start(t)
	begun, ended := make(chan struct{}), make(chan error, 1)
	b := newBackend(t, s, "widgets", newAPI("widgets").serve("/talk", func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			ended <- err
			return
		}
		defer conn.Close()
		close(begun)
		_, err = conn.Read(make([]byte, 1))
		ended <- err
	}), http1)
	b.available(t, s)
	client, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(client,
		"GET /apis/%s/v1/talk HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		b.group()); err != nil {
		t.Fatal(err)
	}
	<-begun
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the backend's connection is closed", ended)
}

// inTrace makes requests part of a trace, as the filters do.
type inTrace struct{ next http.RoundTripper }

func (r inTrace) RoundTrip(req *http.Request) (*http.Response, error) {
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1, 2, 3}, SpanID: trace.SpanID{4},
		TraceFlags: trace.FlagsSampled})
	return r.next.RoundTrip(req.WithContext(trace.ContextWithSpanContext(req.Context(), span)))
}

// TestOutbound_UsesTheGivenDialerAndPassesTheTrace: requests to a backend, and the checks whether it is available, use
// the given dialer, the only way to its address. Requests carry the trace context of the client's request.
func TestOutbound_UsesTheGivenDialerAndPassesTheTrace(t *testing.T) {
	t.Parallel()
	endpoint, address := unserved(t), make(chan string, 1)
	s := start(t, func(d *process.Dependencies, _ *aggregator.Options) {
		d.Backends.Trace = func(next http.RoundTripper) http.RoundTripper {
			return inTrace{tracing.WrapperFor(noop.NewTracerProvider())(next)}
		}
		d.Backends.Dial = func(ctx context.Context, network, to string) (net.Conn, error) {
			if to != endpoint.String() {
				return nil, errors.New("there is no server at " + to)
			}
			at := <-address
			address <- at
			return new(net.Dialer).DialContext(ctx, network, at)
		}
	})
	b := newBackend(t, s, "widgets", newAPI("widgets").serve("/trace", func(w http.ResponseWriter, req *http.Request) {
		parent := propagation.TraceContext{}.Extract(context.Background(), propagation.HeaderCarrier(req.Header))
		_, _ = io.WriteString(w, trace.SpanContextFromContext(parent).TraceID().String())
	}), func(b *backend) {
		b.at = endpoint
		address <- b.Listener.Addr().String()
	})
	b.available(t, s)
	status, seen, _ := get(t, b.url(s, "/trace"))
	if status != http.StatusOK || seen != (trace.TraceID{1, 2, 3}).String() {
		t.Errorf("the backend sees trace %q; %d", seen, status)
	}
}

// BenchmarkProxy compares the CPU that a request through the aggregator costs with that
// of the same request through a bare httputil.ReverseProxy, and with that of a front that
// answers by itself. The metric x-reverse-proxy is the CPU that the aggregator adds to the
// last, divided by the CPU that the bare proxy adds.
//
//	go test ./aggregator -run '^$' -bench Proxy -benchtime 20000x
func BenchmarkProxy(b *testing.B) {
	for _, size := range []struct {
		name string
		body string
	}{
		{"1KiB", strings.Repeat("x", 1<<10)},
		{"64KiB", strings.Repeat("x", 64<<10)},
	} {
		b.Run(size.name, func(b *testing.B) { benchmarkProxy(b, size.body) })
	}
}

func benchmarkProxy(b *testing.B, body string) {
	s := start(b)
	answer := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, body)
	}
	widgets := newBackend(b, s, "widgets", newAPI("widgets").serve("/widgets/{name}", answer))
	widgets.available(b, s)

	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a test's own server
		ForceAttemptHTTP2: true,
	}
	defer transport.CloseIdleConnections()
	target := &url.URL{Scheme: "https", Host: widgets.Listener.Addr().String()}
	bare := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	fronts := []string{
		startFront(b, apitest.WithContext(http.HandlerFunc(answer), tester)),
		startFront(b, apitest.WithContext(bare, tester)),
		s.front.URL,
	}
	const path = "/apis/widgets.example.com/v1/widgets/first"
	for _, front := range fronts { // connects
		get(b, front+path)
	}
	cpu := make([]time.Duration, len(fronts))
	for b.Loop() {
		for i, front := range fronts {
			begun := processCPU(b)
			for range 20 {
				if status, _, _ := get(b, front+path); status != http.StatusOK {
					b.Fatal(status)
				}
			}
			cpu[i] += processCPU(b) - begun
		}
	}
	added := func(i int) float64 {
		return float64((cpu[i] - cpu[0]).Microseconds()) / float64(20*b.N)
	}
	b.ReportMetric(added(1), "µs-bare/op")
	b.ReportMetric(added(2), "µs-aggregator/op")
	b.ReportMetric(added(2)/added(1), "x-reverse-proxy")
}

func startFront(b *testing.B, handler http.Handler) string {
	front := httptest.NewServer(handler)
	b.Cleanup(front.Close)
	return front.URL
}

// processCPU is the CPU time that the process has used.
func processCPU(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
