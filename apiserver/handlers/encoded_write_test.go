package handlers_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"

	"byre/apiserver/handlers"
)

// writes are sent in order, in one namespace of each of the two servers.
var writes = []call{
	{method: http.MethodPost, path: "/configmaps", body: `{"metadata":{"name":"c","annotations":{"text":"<&>\u2028\"\\"}},"data":{"n":"1"}}`},
	{method: http.MethodPost, path: "/configmaps", body: `{"metadata":{"name":"c"}}`},
	{method: http.MethodPost, path: "/configmaps?dryRun=All", body: `{"metadata":{"name":"dry"}}`},
	{method: http.MethodPost, path: "/configmaps?pretty=true", body: `{"metadata":{"name":"indented"}}`},
	{method: http.MethodPost, path: "/configmaps", body: `{"metadata":{"name":"asked-as-yaml"}}`, header: map[string]string{"Accept": "application/yaml"}},
	{method: http.MethodPost, path: "/configmaps", body: `{"metadata":{"name":"asked-as-table"}}`, header: map[string]string{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}},
	{method: http.MethodPost, path: "/configmaps", body: `{"metadata":{"name":"huge"},"data":{"text":"` + strings.Repeat("abc ", 50_000) + `"}}`, header: map[string]string{"Accept-Encoding": "gzip"}},
	{method: http.MethodPut, path: "/configmaps/c", body: `{"metadata":{"name":"c"},"data":{"n":"2"}}`},
	{method: http.MethodPut, path: "/configmaps/c", body: `{"metadata":{"name":"c"},"data":{"n":"2"}}`}, // changes nothing
	{method: http.MethodPatch, path: "/configmaps/c", body: `{"data":{"m":"1"}}`, header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `{"data":{"m":"2"}}`, header: map[string]string{"Content-Type": "application/strategic-merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/applied?fieldManager=me", body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied"},"data":{"a":"b"}}`, header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
	{method: http.MethodPost, path: "/pods", body: `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`},
	{method: http.MethodPatch, path: "/pods/p/status", body: `{"status":{"phase":"Running"}}`, header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPost, path: "/pods/p/binding", body: `{"target":{"kind":"Node","name":"n"}}`},
	{method: http.MethodPost, path: "/services", body: `{"metadata":{"name":"s"},"spec":{"clusterIP":"None","ports":[{"port":80}]}}`},
	{method: http.MethodPost, path: "/replicationcontrollers", body: `{"metadata":{"name":"r"},"spec":{"selector":{"a":"b"},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`},
	{method: http.MethodPatch, path: "/replicationcontrollers/r/scale", body: `{"spec":{"replicas":3}}`, header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPost, path: "/secrets", body: `{"metadata":{"generateName":"made-"},"stringData":{"k":"v"}}`},
}

// given matches values that differ from one object to another.
var given = regexp.MustCompile(`"(uid|resourceVersion|creationTimestamp|time)":\s?"[^"]+"|made-\w+|(?m)^(\s*)(uid|resourceVersion|creationTimestamp|time|- ?time): .*$`)

// TestEncodedWrite_AnswersAsUpstream: an answer that consists of the stored bytes equals
// the answer of an encoder: status, headers, and every byte of the body except values that
// are the object's own.
func TestEncodedWrite_AnswersAsUpstream(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	for _, write := range writes {
		t.Run(write.method+" "+write.path, func(t *testing.T) {
			in := func(namespace string) call {
				c := write
				c.path = "/api/v1/namespaces/" + namespace + c.path
				return c
			}
			want, wantBody := in("other").answer(t, s.decoded)
			got, gotBody := in("first").answer(t, s.bytes)
			if want.StatusCode != got.StatusCode {
				t.Errorf("status %d, want %d: %s", got.StatusCode, want.StatusCode, gotBody)
			}
			if diff := cmp.Diff(headers(want.Header), headers(got.Header)); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
			plain := func(r reply, body string) string { return given.ReplaceAllString(unpack(t, r, body), "") }
			if diff := cmp.Diff(strings.ReplaceAll(plain(want, wantBody), "other", "first"), plain(got, gotBody)); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
		})
	}
}

// TestEncodedWrite_HasTheRevisionOfItsWrite: the answer to a write has the revision of that
// write.
func TestEncodedWrite_HasTheRevisionOfItsWrite(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	last := ""
	for i, c := range []call{
		{method: http.MethodPost, path: "/api/v1/namespaces/first/configmaps", body: `{"metadata":{"name":"c"}}`},
		{method: http.MethodPut, path: "/api/v1/namespaces/first/configmaps/c", body: `{"metadata":{"name":"c"},"data":{"a":"b"}}`},
	} {
		_, answered := c.answer(t, s.bytes)
		_, read := (call{method: http.MethodGet, path: "/api/v1/namespaces/first/configmaps/c"}).answer(t, s.decoded)
		if diff := cmp.Diff(read, answered); diff != "" || answered == last {
			t.Errorf("answer %d (-what is read +answered):\n%s", i, diff)
		}
		last = answered
	}
	version := s.api.Versions()[slices.IndexFunc(s.api.Versions(), func(v *handlers.Version) bool { return v.GroupVersion().String() == "v1" })]
	for path, want := range map[string]bool{"configmaps": true, "pods": true, "pods/status": true, "pods/binding": false, "namespaces": true, "namespaces/finalize": true, "replicationcontrollers/scale": false, "services": false} {
		if got := version.Resource(path).WritesFromBytes(); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}

// countingSerializer counts the encodings of objects.
type countingSerializer struct {
	runtime.NegotiatedSerializer
	encoded *atomic.Int32
}

func (c countingSerializer) EncoderForVersion(encoder runtime.Encoder, version runtime.GroupVersioner) runtime.Encoder {
	return countingEncoder{c.NegotiatedSerializer.EncoderForVersion(encoder, version), c.encoded}
}

type countingEncoder struct {
	runtime.Encoder
	encoded *atomic.Int32
}

func (c countingEncoder) Encode(object runtime.Object, w io.Writer) error {
	c.encoded.Add(1)
	return c.Encoder.Encode(object, w)
}

// TestEncodedWrite_AnswersTheStoredBytes: upstream's handlers answer with the same object
// that storage returned. If a later release answers with another one, the object is encoded
// again and this test fails.
func TestEncodedWrite_AnswersTheStoredBytes(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	var encoded atomic.Int32
	for i := range s.groups {
		s.groups[i].Codecs = countingSerializer{s.groups[i].Codecs, &encoded}
	}
	server := httptest.NewServer(s.handler(s.serving))
	defer server.Close()
	for _, test := range []struct {
		call    call
		encoded int32
	}{
		{call{method: http.MethodPost, path: configMaps, body: `{"metadata":{"name":"c"}}`}, 0},
		{call{method: http.MethodPut, path: configMaps + "/c", body: `{"metadata":{"name":"c"},"data":{"a":"b"}}`}, 0},
		// The patch is applied to the encoded object.
		{call{method: http.MethodPatch, path: configMaps + "/c", body: `{"data":{"a":"c"}}`, header: map[string]string{"Content-Type": "application/merge-patch+json"}}, 1},
	} {
		resp, body := test.call.answer(t, server)
		if got := encoded.Swap(0); resp.StatusCode >= 300 || got != test.encoded {
			t.Errorf("%s: %d %s, encoded %d times, want %d", test.call.method, resp.StatusCode, body, got, test.encoded)
		}
	}
}
