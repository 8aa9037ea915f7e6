package aggregator_test

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"byre/apiserver/apitest"
)

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
