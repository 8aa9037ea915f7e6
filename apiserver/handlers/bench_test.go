package handlers_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	"byre/sqlstore"
)

// BenchmarkLists lists Pods in every form, from stored bytes and through upstream's
// handlers.
func BenchmarkLists(b *testing.B) {
	const pods = 1000
	s := newServer(b, nil)
	filler := strings.Repeat("x", 1500)
	for i := range pods {
		s.create(b, "/api/v1/namespaces/first/pods", fmt.Sprintf(
			`{"metadata":{"name":"pod-%d","labels":{"app":"bench"},"annotations":{"filler":%q}},"spec":{"containers":[{"name":"c","image":"i","env":[{"name":"A","value":"1"}]},{"name":"d","image":"i"}]}}`, i, filler))
	}
	for name, accept := range map[string]string{
		"json":              "application/json",
		"indented":          "application/json;pretty=1",
		"protobuf":          "application/vnd.kubernetes.protobuf",
		"table":             "application/json;as=Table;v=v1;g=meta.k8s.io",
		"indented-table":    "application/json;as=Table;v=v1;g=meta.k8s.io;pretty=1",
		"metadata":          "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
		"metadata-protobuf": "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	} {
		for from, server := range map[string]*httptest.Server{"bytes": s.bytes, "upstream": s.upstream} {
			b.Run(name+"/"+from, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					resp := call{method: http.MethodGet, path: "/api/v1/pods", header: map[string]string{"Accept": accept}}.do(b,
						server)
					n, err := io.Copy(io.Discard, resp.Body)
					if err != nil || resp.StatusCode != http.StatusOK {
						b.Fatal(resp.Status, err)
					}
					resp.Body.Close()
					b.SetBytes(n)
				}
			})
		}
	}
}

// BenchmarkGet gets a Pod, compact and indented, from stored bytes and through upstream's handlers, in turns. It
// reports the processor time of the handlers for each get.
func BenchmarkGet(b *testing.B) {
	s := newServer(b, nil)
	s.create(b, "/api/v1/namespaces/first/pods", benchmarkPod(0))
	const batch = 200
	used, rounds := map[string]int64{}, 0
	for b.Loop() {
		for from, server := range map[string]*httptest.Server{"bytes": s.bytes, "upstream": s.upstream} {
			for form, accept := range map[string]string{"json": "application/json", "indented": "application/json;pretty=1"} {
				req := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/api/v1/namespaces/first/pods/pod-0", nil)
				req.Header.Set("Accept", accept)
				to := &discard{header: http.Header{}}
				began := cpuTime(b)
				for range batch {
					server.Config.Handler.ServeHTTP(to, req)
				}
				used[form+"/"+from] += cpuTime(b) - began
				if to.bytes < batch*1000 {
					b.Fatalf("%d bytes", to.bytes)
				}
			}
		}
		rounds++
	}
	for name, time := range used {
		b.ReportMetric(float64(time)/float64(rounds*batch), "cpu-ns/"+name)
	}
}

// BenchmarkFirstList lists Pods whose representations have not been made yet. It
// reports the processor time for each Pod, including the client's. BenchmarkParallel in
// apiserver/storage has the control.
func BenchmarkFirstList(b *testing.B) {
	const pods = 2000
	for name, accept := range map[string]string{
		"json":              "application/json",
		"protobuf":          "application/vnd.kubernetes.protobuf",
		"table":             "application/json;as=Table;v=v1;g=meta.k8s.io",
		"metadata-protobuf": "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	} {
		b.Run(name, func(b *testing.B) {
			s := newServer(b, nil)
			for i := range pods {
				s.create(b, "/api/v1/namespaces/first/pods", benchmarkPod(i))
			}
			list := call{method: http.MethodGet, path: "/api/v1/pods", header: map[string]string{"Accept": accept}}
			var used int64
			for b.Loop() {
				b.StopTimer()
				s.feed.Forget(sqlstore.Resource{Resource: "pods"})
				if _, err := s.feed.Snapshot(b.Context(), sqlstore.Resource{Resource: "pods"}); err != nil {
					b.Fatal(err)
				}
				before := cpuTime(b)
				b.StartTimer()
				if resp, answer := list.answer(b, s.bytes); resp.StatusCode != http.StatusOK {
					b.Fatal(answer)
				}
				used += cpuTime(b) - before
			}
			b.ReportMetric(float64(used)/float64(b.N)/pods, "cpu-ns/pod")
		})
	}
}

// benchmarkPod is a Pod of two containers with 8 variables each.
func benchmarkPod(i int) string {
	var env []string
	for e := range 8 {
		env = append(env,
			fmt.Sprintf(`{"name":"SETTING_%d","value":"https://service-%d.example.svc.cluster.local:8443/path"}`, e, e))
	}
	container := func(name string) string {
		return fmt.Sprintf(
			`{"name":%q,"image":"i","args":["--listen=:8080"],"env":[%s],"resources":{"requests":{"cpu":"100m"}}}`, name,
			strings.Join(env, ","))
	}
	return fmt.Sprintf(
		`{"metadata":{"name":"pod-%d","labels":{"app":"bench","pod-template-hash":"7d4b9c6f5"}},"spec":{"nodeName":"node-1","containers":[%s,%s]}}`,
		i, container("server"), container("proxy"))
}

// BenchmarkWatches measures an update of a Pod and its delivery to watchers of one form.
func BenchmarkWatches(b *testing.B) {
	const watchers = 200
	for name, accept := range map[string]string{"json": "application/json",
		"protobuf": "application/vnd.kubernetes.protobuf;stream=watch"} {
		for _, from := range []string{"bytes", "upstream"} {
			b.Run(name+"/"+from, func(b *testing.B) {
				s := newServer(b, nil)
				server := map[string]*httptest.Server{"bytes": s.bytes, "upstream": s.upstream}[from]
				const pods = "/api/v1/namespaces/first/pods"
				s.create(b, pods,
					fmt.Sprintf(
						`{"metadata":{"name":"p","annotations":{"filler":%q}},"spec":{"containers":[{"name":"c","image":"i"}]}}`,
						strings.Repeat("x", 2000)))
				delivered := make(chan error, watchers)
				for range watchers {
					resp := call{method: http.MethodGet, path: pods + "?watch=1", header: map[string]string{"Accept": accept}}.do(b,
						server)
					defer resp.Body.Close()
					go readEvents(resp.Body, delivered)
				}
				wait := func() {
					for range watchers {
						if err := <-delivered; err != nil {
							b.Fatal(err)
						}
					}
				}
				wait()
				before := cpuTime(b)
				for i := 0; b.Loop(); i++ {
					c := call{method: http.MethodPatch, path: pods + "/p/status", body: fmt.Sprintf(`{"status":{"message":"%d"}}`, i)}
					c.header = map[string]string{"Content-Type": "application/merge-patch+json"}
					if resp, answer := c.answer(b, s.bytes); resp.StatusCode != http.StatusOK {
						b.Fatal(answer)
					}
					wait()
				}
				b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N)/watchers, "cpu-ns/delivery")
			})
		}
	}
}

// cpuTime is the processor time that the process has used, servers and clients, in
// nanoseconds.
func cpuTime(b *testing.B) int64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return used.Utime.Nano() + used.Stime.Nano()
}

// readEvents reports each event: a line of JSON, or a frame with its length.
func readEvents(body io.Reader, delivered chan<- error) {
	in := bufio.NewReader(body)
	for {
		first, err := in.Peek(1)
		if err != nil {
			return
		}
		if first[0] == '{' {
			_, err = in.ReadSlice('\n')
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = in.ReadSlice('\n')
			}
		} else {
			var size [4]byte
			if _, err = io.ReadFull(in, size[:]); err == nil {
				_, err = io.CopyN(io.Discard, in, int64(binary.BigEndian.Uint32(size[:])))
			}
		}
		if err != nil {
			return // the benchmark is over
		}
		delivered <- nil
	}
}
