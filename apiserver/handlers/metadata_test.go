package handlers_test

import (
	"fmt"
	"net/http"
	"testing"

	"byre/sqlstore"
)

// TestMetadata_CutOutOfTheWholeObject: metadata in protobuf is the same whether it is
// transcoded, cut out of whole objects that are in memory, or encoded by upstream's
// handlers, in gets and lists, in both versions.
func TestMetadata_CutOutOfTheWholeObject(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	const pods = "/api/v1/namespaces/first/pods"
	for i := range 3 {
		s.create(t, pods, fmt.Sprintf(
			`{"metadata":{"name":"p%d","labels":{"app":"a"},"annotations":{"x":"y\n"},"finalizers":["example.com/f"]},"spec":{"containers":[{"name":"c","image":"i"}]}}`, i))
	}
	const protobuf = "application/vnd.kubernetes.protobuf"
	answer := func(path, accept string) string {
		resp, body := call{method: http.MethodGet, path: path, header: map[string]string{"Accept": accept}}.answer(t, s.bytes)
		if resp.StatusCode != http.StatusOK {
			t.Fatal(body)
		}
		return body
	}
	forget := func() { s.feed.Forget(sqlstore.Resource{Resource: "pods"}) }
	for _, version := range []string{"v1", "v1beta1"} {
		for path, kind := range map[string]string{pods: "PartialObjectMetadataList", pods + "/p1": "PartialObjectMetadata"} {
			accept := protobuf + ";as=" + kind + ";g=meta.k8s.io;v=" + version
			forget()
			answer(pods, "application/json") // loads the resource
			made := answer(path, accept)
			forget()
			answer(pods, protobuf) // the whole objects are in memory
			if cut := answer(path, accept); cut != made {
				t.Errorf("%s %s: cut\n%q\nmade\n%q", path, accept, cut, made)
			}
			_, upstream := call{method: http.MethodGet, path: path, header: map[string]string{"Accept": accept}}.answer(t, s.upstream)
			if made != upstream {
				t.Errorf("%s %s: made\n%q\nupstream\n%q", path, accept, made, upstream)
			}
		}
	}
}
