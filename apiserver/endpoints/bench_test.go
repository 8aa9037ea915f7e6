package endpoints_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// BenchmarkLists lists Pods in every form, from bytes and through upstream's handlers.
func BenchmarkLists(b *testing.B) {
	const pods = 1000
	s := newServer(b, nil)
	filler := strings.Repeat("x", 1500)
	for i := range pods {
		s.create(b, "/api/v1/namespaces/field/pods", fmt.Sprintf(
			`{"metadata":{"name":"pod-%d","labels":{"app":"bench"},"annotations":{"filler":%q}},"spec":{"containers":[{"name":"c","image":"i","env":[{"name":"A","value":"1"}]},{"name":"d","image":"i"}]}}`, i, filler))
	}
	for name, accept := range map[string]string{
		"json":              "application/json",
		"protobuf":          "application/vnd.kubernetes.protobuf",
		"table":             "application/json;as=Table;v=v1;g=meta.k8s.io",
		"metadata":          "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
		"metadata-protobuf": "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	} {
		for from, server := range map[string]*httptest.Server{"bytes": s.bytes, "upstream": s.decoded} {
			b.Run(name+"/"+from, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					resp := call{method: http.MethodGet, path: "/api/v1/pods", header: map[string]string{"Accept": accept}}.do(b, server)
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
