package handlers_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"byre/apiserver/apitest"
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

	// What is refused, or answered with a warning.
	{method: http.MethodPost, path: "/configmaps", body: ``},
	{method: http.MethodPost, path: "/configmaps", body: `[]`},
	{method: http.MethodPost, path: "/configmaps", body: `{"kind":"Pod","apiVersion":"v1"}`},
	{method: http.MethodPost, path: "/configmaps", body: `{"kind":"ConfigMap","apiVersion":"v2","metadata":{"name":"c"}}`},
	{method: http.MethodPost, path: "/configmaps", body: `a: b: c`, header: map[string]string{"Content-Type": "application/yaml"}},
	{method: http.MethodPost, path: "/configmaps", body: "metadata: {name: yaml}\nunknown: 1\ndata: {a: b, a: c}\n", header: map[string]string{"Content-Type": "application/yaml"}},
	{method: http.MethodPost, path: "/configmaps", body: `not protobuf`, header: map[string]string{"Content-Type": "application/vnd.kubernetes.protobuf"}},
	{method: http.MethodPost, path: "/configmaps", body: `{}`, header: map[string]string{"Content-Type": "text/plain"}},
	{method: http.MethodPost, path: "/configmaps", body: `{"metadata":{"name":"elsewhere","namespace":"default"}}`},
	{method: http.MethodPost, path: "/configmaps", body: `{"metadata":{"name":"Not valid"}}`},
	{method: http.MethodPost, path: "/configmaps", body: `{"metadata":{"name":"odd","generation":5,"selfLink":"/x"},"datum":{},"data":{"a":"1","a":"2"}}`},
	{method: http.MethodPost, path: "/configmaps?fieldValidation=Strict", body: `{"metadata":{"name":"strict"},"datum":{}}`},
	{method: http.MethodPost, path: "/configmaps?fieldValidation=Ignore", body: `{"metadata":{"name":"ignored"},"datum":{}}`},
	{method: http.MethodPost, path: "/configmaps?fieldValidation=Maybe", body: `{"metadata":{"name":"maybe"}}`},
	{method: http.MethodPost, path: "/configmaps?dryRun=Some", body: `{"metadata":{"name":"some"}}`},
	{method: http.MethodPost, path: "/configmaps?fieldManager=" + strings.Repeat("m", 129), body: `{"metadata":{"name":"managed"}}`},
	{method: http.MethodPost, path: "/configmaps", body: `{"metadata":{"name":"owned","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"1"},{"apiVersion":"v1","kind":"Pod","name":"p","uid":"1"},{"apiVersion":"v1","kind":"Pod","name":"q","uid":"1"}]}}`},
	{method: http.MethodPost, path: "/configmaps", body: `{"metadata":{"name":"asked-as-object-table"}}`, header: map[string]string{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}},
	{method: http.MethodPost, path: "/configmaps?includeObject=Object", body: `{"metadata":{"name":"included"}}`, header: map[string]string{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}},
	{method: http.MethodPost, path: "/configmaps?includeObject=None", body: `{"metadata":{"name":"left-out"}}`, header: map[string]string{"Accept": "application/json;as=Table;v=v1beta1;g=meta.k8s.io"}},
	{method: http.MethodPost, path: "/configmaps?includeObject=Some", body: `{"metadata":{"name":"wrong"}}`, header: map[string]string{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}},
	{method: http.MethodPost, path: "/configmaps", body: `{"metadata":{"name":"partial"}}`, header: map[string]string{"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}},
	{method: http.MethodPost, path: "/configmaps", body: `{"metadata":{"name":"partials"}}`, header: map[string]string{"Accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}},
	{method: http.MethodPut, path: "/configmaps/none", body: `{"metadata":{"name":"none"}}`},
	{method: http.MethodPut, path: "/configmaps/none", body: `{"metadata":{"name":"none","uid":"1"}}`},
	{method: http.MethodPut, path: "/configmaps/none", body: `{"metadata":{"name":"none","resourceVersion":"1"}}`},
	{method: http.MethodPut, path: "/configmaps/c", body: `{"metadata":{"name":"wrong"}}`},
	{method: http.MethodPut, path: "/configmaps/c", body: `{"metadata":{"name":"c","namespace":"default"}}`},
	{method: http.MethodPut, path: "/configmaps/c", body: `{"metadata":{"name":"c","resourceVersion":"1"}}`},
	{method: http.MethodPut, path: "/configmaps/c", body: `{"metadata":{"name":"c","uid":"1"}}`},
	{method: http.MethodPut, path: "/configmaps/c?fieldValidation=Strict", body: `{"metadata":{"name":"c"},"datum":{}}`},
	{method: http.MethodPut, path: "/configmaps/c", body: `{"metadata":{"name":"c","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"1"},{"apiVersion":"v1","kind":"Pod","name":"p","uid":"1"}]},"datum":{}}`},
	{method: http.MethodPatch, path: "/configmaps/none", body: `{}`, header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `{`, header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `[]`, header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `{"data":[1]}`, header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `{"datum":{},"data":{"a":"1","a":"2"}}`, header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c?fieldValidation=Strict", body: `{"datum":{},"data":{"a":"1","a":"2"}}`, header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `{"metadata":{"name":"wrong"}}`, header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `{"metadata":null}`, header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `{"metadata":{"managedFields":[]}}`, header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c?dryRun=All", body: `{"data":{"dry":"1"}}`, header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c?force=true", body: `{"data":{"dry":"1"}}`, header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `[{"op":"add","path":"/data/x","value":"1"},{"op":"test","path":"/data/x","value":"1","more":1}]`, header: map[string]string{"Content-Type": "application/json-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c?fieldValidation=Strict", body: `[{"op":"add","path":"/datum","value":"1","more":1}]`, header: map[string]string{"Content-Type": "application/json-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `[{"op":"test","path":"/data/x","value":"2"}]`, header: map[string]string{"Content-Type": "application/json-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `[{"op":"wish","path":"/data/x"}]`, header: map[string]string{"Content-Type": "application/json-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `{}`, header: map[string]string{"Content-Type": "application/json-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `[{"op":"remove","path":"/metadata/managedFields/0"}]`, header: map[string]string{"Content-Type": "application/json-patch+json"}},
	{method: http.MethodPatch, path: "/pods/p", body: `{"spec":{"containers":[{"name":"c","image":"j"}]}}`, header: map[string]string{"Content-Type": "application/strategic-merge-patch+json"}},
	{method: http.MethodPatch, path: "/pods/p", body: `{"spec":{"containers":[{"image":"j"}]}}`, header: map[string]string{"Content-Type": "application/strategic-merge-patch+json"}},
	{method: http.MethodPatch, path: "/pods/p", body: `{"spec":{"containers":"c"}}`, header: map[string]string{"Content-Type": "application/strategic-merge-patch+json"}},
	{method: http.MethodPatch, path: "/pods/p", body: `{"spec":{"container":1,"activeDeadlineSeconds":"x"}}`, header: map[string]string{"Content-Type": "application/strategic-merge-patch+json"}},
	{method: http.MethodPatch, path: "/pods/p?fieldValidation=Strict", body: `{"spec":{"container":1}}`, header: map[string]string{"Content-Type": "application/strategic-merge-patch+json"}},
	{method: http.MethodPatch, path: "/pods/p", body: `{"spec":{"container":1,"container":2},"metadata":{"labels":{"a":"b"}}}`, header: map[string]string{"Content-Type": "application/strategic-merge-patch+json"}},
	{method: http.MethodPatch, path: "/pods/p", body: `{"metadata":{"$patch":"wish"}}`, header: map[string]string{"Content-Type": "application/strategic-merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/applied", body: `{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"c"}}`, header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
	{method: http.MethodPatch, path: "/configmaps/applied?fieldManager=them", body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied"},"data":{"a":"c"}}`, header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
	{method: http.MethodPatch, path: "/configmaps/applied?fieldManager=them&force=true", body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied"},"data":{"a":"c"},"datum":1}`, header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
	{method: http.MethodPatch, path: "/configmaps/applied?fieldManager=them&force=true", body: "apiVersion: v1\nkind: ConfigMap\ndata: {a: d, a: e}\n", header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
	{method: http.MethodPatch, path: "/configmaps/applied?fieldManager=them&force=true&fieldValidation=Strict", body: "apiVersion: v1\nkind: ConfigMap\ndata: {a: d, a: e}\n", header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
	{method: http.MethodPatch, path: "/configmaps/applied?fieldManager=me", body: `{"apiVersion":"v2","kind":"ConfigMap","data":{"a":"c"}}`, header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
	{method: http.MethodPatch, path: "/configmaps/applied?fieldManager=me", body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"managedFields":[{}]}}`, header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
	{method: http.MethodPatch, path: "/configmaps/applied-with-uid?fieldManager=me", body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied-with-uid","uid":"1"}}`, header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
	{method: http.MethodPatch, path: "/configmaps/applied?fieldManager=me", body: `a: [`, header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},

	{method: http.MethodDelete, path: "/configmaps/none"},
	{method: http.MethodDelete, path: "/configmaps/c?dryRun=All"},
	{method: http.MethodDelete, path: "/configmaps/c", body: `{"preconditions":{"uid":"1"}}`},
	{method: http.MethodDelete, path: "/configmaps/c", body: `{"kind":"Pod","apiVersion":"v1"}`},
	{method: http.MethodDelete, path: "/configmaps/c", body: `{`},
	{method: http.MethodDelete, path: "/configmaps/c", body: `{"orphanDependents":true,"propagationPolicy":"Orphan"}`},
	{method: http.MethodDelete, path: "/configmaps/c", body: `{"ignoreStoreReadErrorWithClusterBreakingPotential":true}`},
	{method: http.MethodDelete, path: "/configmaps/c", body: `{"orphanDependents":true}`},
	{method: http.MethodDelete, path: "/pods/p", body: `{"orphanDependents":false,"gracePeriodSeconds":5}`},
	{method: http.MethodDelete, path: "/pods/p?gracePeriodSeconds=0", header: map[string]string{"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}},
	{method: http.MethodDelete, path: "/configmaps?fieldSelector=spec.x=1"},
	{method: http.MethodDelete, path: "/configmaps?labelSelector=,,"},
	{method: http.MethodDelete, path: "/configmaps?resourceVersionMatch=Exact"},
	{method: http.MethodDelete, path: "/configmaps", body: `{"ignoreStoreReadErrorWithClusterBreakingPotential":true}`},
	{method: http.MethodDelete, path: "/configmaps?fieldSelector=metadata.name=owned", header: map[string]string{"Accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}},
	{method: http.MethodDelete, path: "/configmaps?labelSelector=a=b", header: map[string]string{"Accept": "application/json;as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io"}},
	{method: http.MethodDelete, path: "/configmaps?fieldSelector=metadata.name=partial", header: map[string]string{"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}},
	{method: http.MethodDelete, path: "/configmaps?dryRun=All", header: map[string]string{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}},
	{method: http.MethodDelete, path: "/configmaps"},
	{method: http.MethodDelete, path: "/configmaps"},
}

// given matches values that differ from one object to another.
var given = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\\+"(resourceVersion|creationTimestamp|time)\\+":\\+"[^"]+"|"(uid|resourceVersion|creationTimestamp|time)":\s?"[^"]+"|made-\w+|(?m)^(\s*)(uid|resourceVersion|creationTimestamp|time|- ?time): .*$`)

// TestWrite_AnswersAsUpstream: the answer to a write equals that of upstream's handlers: status,
// headers with their warnings, and every byte of the body except values that are the object's own.
func TestWrite_AnswersAsUpstream(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	for _, write := range writes {
		t.Run(write.method+" "+write.path+" "+write.body[:min(len(write.body), 60)], func(t *testing.T) {
			in := func(namespace string) call {
				c := write
				c.path = "/api/v1/namespaces/" + namespace + c.path
				return c
			}
			want, wantBody := in("other").answer(t, s.upstream)
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
		_, read := (call{method: http.MethodGet, path: "/api/v1/namespaces/first/configmaps/c"}).answer(t, s.upstream)
		if diff := cmp.Diff(read, answered); diff != "" || answered == last {
			t.Errorf("answer %d (-what is read +answered):\n%s", i, diff)
		}
		last = answered
	}
	for path, want := range map[string]bool{"configmaps": true, "pods": true, "pods/status": true, "pods/binding": false, "namespaces": true, "namespaces/finalize": true, "replicationcontrollers/scale": false, "services": false} {
		if got := s.api.Resource(schema.GroupVersion{Version: "v1"}, path).WritesFromBytes(); got != want {
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

// TestEncodedWrite_AnswersTheStoredBytes: an object is encoded once, to be stored.
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

// hanging is admission that waits for the end of a request, as a webhook that does not answer.
type hanging struct{}

func (hanging) Handles(admission.Operation) bool { return true }

func (hanging) Admit(ctx context.Context, attributes admission.Attributes, _ admission.ObjectInterfaces) error {
	return hanging{}.Validate(ctx, attributes, nil)
}

func (hanging) Validate(ctx context.Context, attributes admission.Attributes, _ admission.ObjectInterfaces) error {
	if attributes.GetName() != "slow" {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

// TestWrite_EndsAtItsDeadline: a write that has not ended at its deadline answers as upstream's, and
// nothing is written.
func TestWrite_EndsAtItsDeadline(t *testing.T) {
	t.Parallel()
	s := newAdmittingServer(t, nil, hanging{})
	ours := s.handler(s.serving)
	upstream := apitest.WithContext(s.api.UpstreamWrites(), someone)
	object := `{"metadata":{"name":"slow"},"data":{"a":"b"}}`
	for _, c := range []call{
		{method: http.MethodPost, path: configMaps, body: object},
		{method: http.MethodPatch, path: configMaps + "/slow?fieldManager=m", body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"slow"}}`, header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
	} {
		answers := map[string]string{}
		for name, handler := range map[string]http.Handler{"ours": ours, "upstream": upstream} {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			req := httptest.NewRequestWithContext(ctx, c.method, c.path, strings.NewReader(c.body))
			for key, value := range c.header {
				req.Header.Set(key, value)
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, req)
			cancel()
			answers[name] = fmt.Sprint(w.Code, w.Body)
		}
		if answers["ours"] != answers["upstream"] || !strings.HasPrefix(answers["ours"], "504") {
			t.Errorf("%s %s: %v", c.method, c.path, answers)
		}
	}
	if got, _ := (call{method: http.MethodGet, path: configMaps + "/slow"}).answer(t, s.bytes); got.StatusCode != http.StatusNotFound {
		t.Errorf("the object is there: %d", got.StatusCode)
	}
}
