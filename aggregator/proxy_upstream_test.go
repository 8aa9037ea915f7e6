package aggregator_test

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/endpoints/request"
	apiserverproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/transport"

	"byre/apiserver/apitest"
)

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
			for _, name := range []string{"Access-Control-Allow-Origin", "Access-Control-Allow-Methods", "Connection", "X-Kept"} {
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
			_, _ = io.WriteString(w, `<html><a href="/apis/widgets.example.com/v1/widgets">all</a><a href="https://`+req.Host+`/x">x</a></html>`)
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
			"Forwarded": {"for=192.0.2.9"}, "X-Forwarded-For": {"192.0.2.9", "192.0.2.8"}, "X-Forwarded-Host": {"a"}, "X-Forwarded-Proto": {"b"}, "X-Forwarded-Uri": {"c"},
		}},
		{"hop by hop", http.MethodGet, "/widgets/first", http.Header{
			"Connection": {"X-Remote-User, X-Remote-Group, X-Mine"}, "X-Mine": {"1"}, "Te": {"trailers"}, "Keep-Alive": {"1"}, "Proxy-Authorization": {"x"},
		}},
		{"identity", http.MethodGet, "/widgets/first", http.Header{
			"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}, "X-Remote-Extra-Mine": {"1"}, "X-Remote-Uid": {"0"}, "Impersonate-User": {"x"}, "Authorization": {"Bearer x"},
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
				req, err := http.NewRequestWithContext(t.Context(), test.method, front+"/apis/widgets.example.com/v1"+test.path, nil)
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
