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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"byre/apiserver/apitest"
	"byre/apiserver/handlers"
	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

// writes are sent in order, in one namespace of each of the two servers.
var writes = []call{
	{method: http.MethodPost, path: "/configmaps",
		body: `{"metadata":{"name":"c","annotations":{"text":"<&>\u2028\"\\"}},"data":{"n":"1"}}`},
	{method: http.MethodPost, path: "/configmaps", body: `{"metadata":{"name":"c"}}`},
	{method: http.MethodPost, path: "/configmaps?dryRun=All", body: `{"metadata":{"name":"dry"}}`},
	{method: http.MethodPost, path: "/configmaps?pretty=true", body: `{"metadata":{"name":"indented"}}`},
	{method: http.MethodPatch, path: "/configmaps/indented", body: `{"data":{"<&>":"\u2028"},"binaryData":{}}`,
		header: map[string]string{"Content-Type": "application/merge-patch+json", "User-Agent": "curl/8"}},
	{method: http.MethodPut, path: "/configmaps/indented", body: `{"metadata":{"name":"indented"}}`,
		header: map[string]string{"Accept": "application/json;pretty=1"}},
	{method: http.MethodPost, path: "/configmaps", body: `{"metadata":{"name":"asked-as-yaml"}}`,
		header: map[string]string{"Accept": "application/yaml"}},
	{method: http.MethodPost, path: "/configmaps", body: `{"metadata":{"name":"asked-as-table"}}`,
		header: map[string]string{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}},
	{method: http.MethodPost, path: "/configmaps",
		body:   `{"metadata":{"name":"huge"},"data":{"text":"` + strings.Repeat("abc ", 50_000) + `"}}`,
		header: map[string]string{"Accept-Encoding": "gzip"}},
	{method: http.MethodPut, path: "/configmaps/c", body: `{"metadata":{"name":"c"},"data":{"n":"2"}}`},
	{method: http.MethodPut, path: "/configmaps/c", body: `{"metadata":{"name":"c"},"data":{"n":"2"}}`}, // changes nothing
	{method: http.MethodPatch, path: "/configmaps/c", body: `{"data":{"m":"1"}}`,
		header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `{"data":{"m":"2"}}`,
		header: map[string]string{"Content-Type": "application/strategic-merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/applied?fieldManager=me",
		body:   `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied"},"data":{"a":"b"}}`,
		header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
	{method: http.MethodPost, path: "/pods",
		body: `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`},
	{method: http.MethodPatch, path: "/pods/p/status", body: `{"status":{"phase":"Running"}}`,
		header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPost, path: "/pods/p/binding", body: `{"target":{"kind":"Node","name":"n"}}`},
	{method: http.MethodPost, path: "/services",
		body: `{"metadata":{"name":"s"},"spec":{"clusterIP":"None","ports":[{"port":80}]}}`},
	{method: http.MethodPost, path: "/replicationcontrollers",
		body: `{"metadata":{"name":"r"},"spec":{"selector":{"a":"b"},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`},
	{method: http.MethodPatch, path: "/replicationcontrollers/r/scale", body: `{"spec":{"replicas":3}}`,
		header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPost, path: "/secrets", body: `{"metadata":{"generateName":"made-"},"stringData":{"k":"v"}}`},

	// What is refused, or answered with a warning.
	{method: http.MethodPost, path: "/configmaps", body: ``},
	{method: http.MethodPost, path: "/configmaps", body: `[]`},
	{method: http.MethodPost, path: "/configmaps", body: `{"kind":"Pod","apiVersion":"v1"}`},
	{method: http.MethodPost, path: "/configmaps", body: `{"kind":"ConfigMap","apiVersion":"v2","metadata":{"name":"c"}}`},
	{method: http.MethodPost, path: "/configmaps", body: `a: b: c`,
		header: map[string]string{"Content-Type": "application/yaml"}},
	{method: http.MethodPost, path: "/configmaps", body: "metadata: {name: yaml}\nunknown: 1\ndata: {a: b, a: c}\n",
		header: map[string]string{"Content-Type": "application/yaml"}},
	{method: http.MethodPost, path: "/configmaps", body: `not protobuf`,
		header: map[string]string{"Content-Type": "application/vnd.kubernetes.protobuf"}},
	{method: http.MethodPost, path: "/configmaps", body: `{}`, header: map[string]string{"Content-Type": "text/plain"}},
	{method: http.MethodPost, path: "/configmaps", body: `{"metadata":{"name":"elsewhere","namespace":"default"}}`},
	{method: http.MethodPost, path: "/configmaps", body: `{"metadata":{"name":"Not valid"}}`},
	{method: http.MethodPost, path: "/configmaps",
		body: `{"metadata":{"name":"odd","generation":5,"selfLink":"/x"},"datum":{},"data":{"a":"1","a":"2"}}`},
	{method: http.MethodPost, path: "/configmaps?fieldValidation=Strict",
		body: `{"metadata":{"name":"strict"},"datum":{}}`},
	{method: http.MethodPost, path: "/configmaps?fieldValidation=Ignore",
		body: `{"metadata":{"name":"ignored"},"datum":{}}`},
	{method: http.MethodPost, path: "/configmaps?fieldValidation=Maybe", body: `{"metadata":{"name":"maybe"}}`},
	{method: http.MethodPost, path: "/configmaps?dryRun=Some", body: `{"metadata":{"name":"some"}}`},
	{method: http.MethodPost, path: "/configmaps?fieldManager=" + strings.Repeat("m", 129),
		body: `{"metadata":{"name":"managed"}}`},
	{method: http.MethodPost, path: "/configmaps",
		body: `{"metadata":{"name":"owned","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"1"},{"apiVersion":"v1","kind":"Pod","name":"p","uid":"1"},{"apiVersion":"v1","kind":"Pod","name":"q","uid":"1"}]}}`},
	{method: http.MethodPost, path: "/configmaps", body: `{"metadata":{"name":"asked-as-object-table"}}`,
		header: map[string]string{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}},
	{method: http.MethodPost, path: "/configmaps?includeObject=Object", body: `{"metadata":{"name":"included"}}`,
		header: map[string]string{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}},
	{method: http.MethodPost, path: "/configmaps?includeObject=None", body: `{"metadata":{"name":"left-out"}}`,
		header: map[string]string{"Accept": "application/json;as=Table;v=v1beta1;g=meta.k8s.io"}},
	{method: http.MethodPost, path: "/configmaps?includeObject=Some", body: `{"metadata":{"name":"wrong"}}`,
		header: map[string]string{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}},
	{method: http.MethodPost, path: "/configmaps", body: `{"metadata":{"name":"partial"}}`,
		header: map[string]string{"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}},
	{method: http.MethodPost, path: "/configmaps", body: `{"metadata":{"name":"partials"}}`,
		header: map[string]string{"Accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}},
	{method: http.MethodPut, path: "/configmaps/none", body: `{"metadata":{"name":"none"}}`},
	{method: http.MethodPut, path: "/configmaps/none", body: `{"metadata":{"name":"none","uid":"1"}}`},
	{method: http.MethodPut, path: "/configmaps/none", body: `{"metadata":{"name":"none","resourceVersion":"1"}}`},
	{method: http.MethodPut, path: "/configmaps/c", body: `{"metadata":{"name":"wrong"}}`},
	{method: http.MethodPut, path: "/configmaps/c", body: `{"metadata":{"name":"c","namespace":"default"}}`},
	{method: http.MethodPut, path: "/configmaps/c", body: `{"metadata":{"name":"c","resourceVersion":"1"}}`},
	{method: http.MethodPut, path: "/configmaps/c", body: `{"metadata":{"name":"c","uid":"1"}}`},
	{method: http.MethodPut, path: "/configmaps/c?fieldValidation=Strict", body: `{"metadata":{"name":"c"},"datum":{}}`},
	{method: http.MethodPut, path: "/configmaps/c",
		body: `{"metadata":{"name":"c","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"1"},{"apiVersion":"v1","kind":"Pod","name":"p","uid":"1"}]},"datum":{}}`},
	{method: http.MethodPatch, path: "/configmaps/none", body: `{}`,
		header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `{`,
		header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `[]`,
		header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `{"data":[1]}`,
		header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `{"datum":{},"data":{"a":"1","a":"2"}}`,
		header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c?fieldValidation=Strict", body: `{"datum":{},"data":{"a":"1","a":"2"}}`,
		header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `{"metadata":{"name":"wrong"}}`,
		header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `{"metadata":null}`,
		header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `{"metadata":{"managedFields":[]}}`,
		header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c?dryRun=All", body: `{"data":{"dry":"1"}}`,
		header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c?force=true", body: `{"data":{"dry":"1"}}`,
		header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c",
		body:   `[{"op":"add","path":"/data/x","value":"1"},{"op":"test","path":"/data/x","value":"1","more":1}]`,
		header: map[string]string{"Content-Type": "application/json-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c?fieldValidation=Strict",
		body:   `[{"op":"add","path":"/datum","value":"1","more":1}]`,
		header: map[string]string{"Content-Type": "application/json-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `[{"op":"test","path":"/data/x","value":"2"}]`,
		header: map[string]string{"Content-Type": "application/json-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `[{"op":"wish","path":"/data/x"}]`,
		header: map[string]string{"Content-Type": "application/json-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `{}`,
		header: map[string]string{"Content-Type": "application/json-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/c", body: `[{"op":"remove","path":"/metadata/managedFields/0"}]`,
		header: map[string]string{"Content-Type": "application/json-patch+json"}},
	{method: http.MethodPatch, path: "/pods/p", body: `{"spec":{"containers":[{"name":"c","image":"j"}]}}`,
		header: map[string]string{"Content-Type": "application/strategic-merge-patch+json"}},
	{method: http.MethodPatch, path: "/pods/p", body: `{"spec":{"containers":[{"image":"j"}]}}`,
		header: map[string]string{"Content-Type": "application/strategic-merge-patch+json"}},
	{method: http.MethodPatch, path: "/pods/p", body: `{"spec":{"containers":"c"}}`,
		header: map[string]string{"Content-Type": "application/strategic-merge-patch+json"}},
	{method: http.MethodPatch, path: "/pods/p", body: `{"spec":{"container":1,"activeDeadlineSeconds":"x"}}`,
		header: map[string]string{"Content-Type": "application/strategic-merge-patch+json"}},
	{method: http.MethodPatch, path: "/pods/p?fieldValidation=Strict", body: `{"spec":{"container":1}}`,
		header: map[string]string{"Content-Type": "application/strategic-merge-patch+json"}},
	{method: http.MethodPatch, path: "/pods/p",
		body:   `{"spec":{"container":1,"container":2},"metadata":{"labels":{"a":"b"}}}`,
		header: map[string]string{"Content-Type": "application/strategic-merge-patch+json"}},
	{method: http.MethodPatch, path: "/pods/p", body: `{"metadata":{"$patch":"wish"}}`,
		header: map[string]string{"Content-Type": "application/strategic-merge-patch+json"}},
	{method: http.MethodPatch, path: "/configmaps/applied",
		body:   `{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"c"}}`,
		header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
	{method: http.MethodPatch, path: "/configmaps/applied?fieldManager=them",
		body:   `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied"},"data":{"a":"c"}}`,
		header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
	{method: http.MethodPatch, path: "/configmaps/applied?fieldManager=them&force=true",
		body:   `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied"},"data":{"a":"c"},"datum":1}`,
		header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
	{method: http.MethodPatch, path: "/configmaps/applied?fieldManager=them&force=true",
		body:   "apiVersion: v1\nkind: ConfigMap\ndata: {a: d, a: e}\n",
		header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
	{method: http.MethodPatch, path: "/configmaps/applied?fieldManager=them&force=true&fieldValidation=Strict",
		body:   "apiVersion: v1\nkind: ConfigMap\ndata: {a: d, a: e}\n",
		header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
	{method: http.MethodPatch, path: "/configmaps/applied?fieldManager=me",
		body:   `{"apiVersion":"v2","kind":"ConfigMap","data":{"a":"c"}}`,
		header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
	{method: http.MethodPatch, path: "/configmaps/applied?fieldManager=me",
		body:   `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"managedFields":[{}]}}`,
		header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
	{method: http.MethodPatch, path: "/configmaps/applied-with-uid?fieldManager=me",
		body:   `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied-with-uid","uid":"1"}}`,
		header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
	{method: http.MethodPatch, path: "/configmaps/applied?fieldManager=me", body: `a: [`,
		header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},

	{method: http.MethodDelete, path: "/configmaps/none"},
	{method: http.MethodDelete, path: "/configmaps/c?dryRun=All"},
	{method: http.MethodDelete, path: "/configmaps/c", body: `{"preconditions":{"uid":"1"}}`},
	{method: http.MethodDelete, path: "/configmaps/c", body: `{"kind":"Pod","apiVersion":"v1"}`},
	{method: http.MethodDelete, path: "/configmaps/c", body: `{`},
	{method: http.MethodDelete, path: "/configmaps/c", body: `{"orphanDependents":true,"propagationPolicy":"Orphan"}`},
	{method: http.MethodDelete, path: "/configmaps/c", body: `{"ignoreStoreReadErrorWithClusterBreakingPotential":true}`},
	{method: http.MethodPost, path: "/configmaps",
		body: `{"metadata":{"name":"finalized","finalizers":["example.com/f"]},"data":{"a":"<&>"}}`},
	{method: http.MethodDelete, path: "/configmaps/finalized"}, // is an update
	{method: http.MethodDelete, path: "/configmaps/finalized?pretty=true"},
	{method: http.MethodPatch, path: "/configmaps/finalized", body: `{"metadata":{"finalizers":null}}`,
		header: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{method: http.MethodDelete, path: "/configmaps/c", body: `{"orphanDependents":true}`},
	{method: http.MethodDelete, path: "/pods/p", body: `{"orphanDependents":false,"gracePeriodSeconds":5}`},
	{method: http.MethodDelete, path: "/pods/p?gracePeriodSeconds=0",
		header: map[string]string{"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}},
	{method: http.MethodDelete, path: "/configmaps?fieldSelector=spec.x=1"},
	{method: http.MethodDelete, path: "/configmaps?labelSelector=,,"},
	{method: http.MethodDelete, path: "/configmaps?resourceVersionMatch=Exact"},
	{method: http.MethodDelete, path: "/configmaps", body: `{"ignoreStoreReadErrorWithClusterBreakingPotential":true}`},
	{method: http.MethodDelete, path: "/configmaps?fieldSelector=metadata.name=owned",
		header: map[string]string{"Accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}},
	{method: http.MethodDelete, path: "/configmaps?labelSelector=a=b",
		header: map[string]string{"Accept": "application/json;as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io"}},
	{method: http.MethodDelete, path: "/configmaps?fieldSelector=metadata.name=partial",
		header: map[string]string{"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}},
	{method: http.MethodDelete, path: "/configmaps?dryRun=All",
		header: map[string]string{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}},
	{method: http.MethodDelete, path: "/configmaps"},
	{method: http.MethodDelete, path: "/configmaps"},
}

// given matches values that differ from one object to another.
var given = regexp.MustCompile(
	`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\\+"(resourceVersion|creationTimestamp|time)\\+":\\+"[^"]+"|"(uid|resourceVersion|creationTimestamp|time)":\s?"[^"]+"|made-\w+|(?m)^(\s*)(uid|resourceVersion|creationTimestamp|time|- ?time): .*$`)

// deletion matches the time of a deletion, which may be in another second than that of the same deletion upstream.
var deletion = regexp.MustCompile(`(deletionTimestamp[\\":\s]+)[0-9TZ:-]+`)

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
			plain := func(r reply, body string) string {
				return deletion.ReplaceAllString(given.ReplaceAllString(unpack(t, r, body), ""), "$1")
			}
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
		{method: http.MethodPut, path: "/api/v1/namespaces/first/configmaps/c",
			body: `{"metadata":{"name":"c"},"data":{"a":"b"}}`},
	} {
		_, answered := c.answer(t, s.bytes)
		_, read := (call{method: http.MethodGet, path: "/api/v1/namespaces/first/configmaps/c"}).answer(t, s.upstream)
		if diff := cmp.Diff(read, answered); diff != "" || answered == last {
			t.Errorf("answer %d (-what is read +answered):\n%s", i, diff)
		}
		last = answered
	}
	for path, want := range map[string]bool{"configmaps": true, "pods": true, "pods/status": true, "pods/binding": false,
		"namespaces": true, "namespaces/finalize": true, "replicationcontrollers/scale": false, "services": false} {
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
		{call{method: http.MethodPatch, path: configMaps + "/c", body: `{"data":{"a":"c"}}`,
			header: map[string]string{"Content-Type": "application/merge-patch+json"}}, 1},
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
		{method: http.MethodPatch, path: configMaps + "/slow?fieldManager=m",
			body:   `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"slow"}}`,
			header: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
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
	if got, _ := (call{method: http.MethodGet, path: configMaps + "/slow"}).answer(t,
		s.bytes); got.StatusCode != http.StatusNotFound {
		t.Errorf("the object is there: %d", got.StatusCode)
	}
}

// admitAll is admission that changes nothing.
type admitAll struct{}

func (admitAll) Handles(admission.Operation) bool { return true }

func (admitAll) Admit(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return nil
}

func (admitAll) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return nil
}

// BenchmarkCreate creates Pods by upstream's handlers, by ours, and by ours on a goroutine whose
// stack was not grown before, in turns, so that other load on the machine affects all alike. It
// reports the processor time of a create.
func BenchmarkCreate(b *testing.B) {
	s := newAdmittingServer(b, nil, admitAll{})
	ours := s.handler(s.serving)
	variants := map[string]http.Handler{"upstream": apitest.WithContext(s.api.UpstreamWrites(), someone), "ours": ours,
		"small-stack": ours}
	const batch = 20
	used, created := map[string]int64{}, 0
	for b.Loop() {
		for name, handler := range variants {
			began := cpuTime(b)
			for n := range batch {
				createOnGoroutine(b, handler, fmt.Sprintf("%s-%d-%d", name, created, n), name != "small-stack")
			}
			used[name] += cpuTime(b) - began
		}
		created++
	}
	for name, time := range used {
		b.ReportMetric(float64(time)/float64(created*batch), "cpu-ns/"+name)
	}
}

// createOnGoroutine creates a Pod on a fresh goroutine, as the timeout filter does.
func createOnGoroutine(b *testing.B, handler http.Handler, name string, grow bool) {
	b.Helper()
	body := fmt.Sprintf(
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"labels":{"app":"web"}},"spec":{"containers":[{"name":"c","image":"i","env":[{"name":"A","value":"1"},{"name":"B","value":"2"}]},{"name":"d","image":"i"}]}}`, name)
	req := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/api/v1/namespaces/first/pods",
		strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if grow {
			handlers.GrowForHandler()
		}
		handler.ServeHTTP(w, req)
	}()
	if <-done; w.Code != http.StatusCreated {
		b.Fatal(w.Code, w.Body)
	}
}

// faulty is a driver that fails its next commits as the test says.
type faulty struct {
	sqlstore.Driver
	// failures has one entry for each coming commit; nil lets that commit pass.
	failures []failure
	commits  int
}

type failure struct {
	err error
	// done makes the commit take effect in spite of its error.
	done bool
}

func (f *faulty) Commit(ctx context.Context, batch []sqlstore.Write) ([]sqlstore.Outcome, error) {
	if len(batch) == 0 {
		return f.Driver.Commit(ctx, batch) // the commit by which the store tries the database after a failure
	}
	f.commits++
	if len(f.failures) == 0 {
		return f.Driver.Commit(ctx, batch)
	}
	next := f.failures[0]
	f.failures = f.failures[1:]
	if next.done {
		if _, err := f.Driver.Commit(ctx, batch); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: connection reset", next.err)
}

// TestUnknownOutcome_IsNotRetriedByClients: client-go repeats any request whose answer has
// Retry-After. A write whose outcome is unknown is therefore answered without it, and a
// write that certainly did not happen with it.
func TestUnknownOutcome_IsNotRetriedByClients(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	driver := &faulty{}
	s := newServer(t, func(d sqlstore.Driver) sqlstore.Driver {
		driver.Driver = d
		return driver
	})
	client, err := kubernetes.NewForConfig(&rest.Config{Host: s.bytes.URL})
	if err != nil {
		t.Fatal(err)
	}
	maps := client.CoreV1().ConfigMaps("default")
	stored := func() int {
		list, err := maps.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	generated := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "map-"}}

	for _, done := range []bool{false, true} {
		before := stored()
		driver.commits, driver.failures = 0, []failure{{sqlstore.ErrUnknown, done}}
		_, err := maps.Create(t.Context(), generated, metav1.CreateOptions{})
		if delay, suggested := apierrors.SuggestsClientDelay(err); !apierrors.IsTimeout(err) || suggested {
			t.Errorf("create, done %v: %v, delay %d", done, err, delay)
		}
		if driver.commits != 1 || stored() > before+1 {
			t.Errorf("create, done %v: %d commits, %d objects more", done, driver.commits, stored()-before)
		}
	}

	one, err := maps.Create(t.Context(), generated, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for verb, write := range map[string]func() error{
		"patch": func() error {
			_, err := maps.Patch(t.Context(), one.Name, types.MergePatchType, []byte(`{"data":{"a":"1"}}`),
				metav1.PatchOptions{})
			return err
		},
		"update": func() error {
			changed := one.DeepCopy()
			changed.ResourceVersion, changed.Data = "", map[string]string{"b": "1"}
			_, err := maps.Update(t.Context(), changed, metav1.UpdateOptions{})
			return err
		},
		"delete": func() error { return maps.Delete(t.Context(), one.Name, metav1.DeleteOptions{}) },
		"deletecollection": func() error {
			return maps.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
		},
	} {
		driver.commits, driver.failures = 0, []failure{{err: sqlstore.ErrUnknown}}
		if err := write(); !apierrors.IsTimeout(err) || driver.commits != 1 {
			t.Errorf("%s: %v after %d commits", verb, err, driver.commits)
		}
	}

	// The client repeats a write that was not begun, and it succeeds.
	before := stored()
	driver.commits, driver.failures = 0, []failure{{err: sqlstore.ErrUnavailable}}
	if _, err := maps.Create(t.Context(), generated, metav1.CreateOptions{}); err != nil || driver.commits != 2 ||
		stored() != before+1 {
		t.Errorf("create while the database is unavailable: %v, %d commits, %d objects more", err, driver.commits,
			stored()-before)
	}
	driver.failures = []failure{{err: sqlstore.ErrUnavailable}}
	resp, body := call{method: http.MethodPost, path: configMaps, body: `{"metadata":{"name":"x"}}`}.answer(t, s.bytes)
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("unavailable: %d %v %s", resp.StatusCode, resp.Header, body)
	}
	driver.failures = []failure{{err: sqlstore.ErrUnknown}}
	resp, body = call{method: http.MethodPost, path: configMaps, body: `{"metadata":{"name":"x"}}`}.answer(t, s.bytes)
	if resp.StatusCode != http.StatusGatewayTimeout || resp.Header.Get("Retry-After") != "" {
		t.Errorf("unknown: %d %v %s", resp.StatusCode, resp.Header, body)
	}
}

// TestWrite_RecordsSubresourceAndManager: the changes of requests that differ in their
// subresource or field manager differ in their author.
func TestWrite_RecordsSubresourceAndManager(t *testing.T) {
	t.Parallel()
	driver := storetest.NewModel()
	s := newServer(t, func(sqlstore.Driver) sqlstore.Driver { return driver })
	const deployments = "/apis/apps/v1/namespaces/first/deployments"
	const web = deployments + "/web"
	merge := "application/merge-patch+json"
	for _, test := range []struct {
		method, path, body string
		header             map[string]string
		want               sqlstore.Author
	}{
		{http.MethodPost, deployments, `{"metadata":{"name":"web"},"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},
"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`,
			map[string]string{"User-Agent": "kubectl/v1.37.2 (linux/amd64)"},
			sqlstore.Author{Verb: "create", Manager: "kubectl"}},
		{http.MethodPatch, web + "/scale", `{"spec":{"replicas":3}}`,
			map[string]string{"Content-Type": merge, "User-Agent": "scaler/1"},
			sqlstore.Author{Verb: "patch", Subresource: "scale", Manager: "scaler"}},
		{http.MethodPatch, web + "/status?fieldManager=me", `{"status":{"replicas":3}}`,
			map[string]string{"Content-Type": merge}, sqlstore.Author{Verb: "patch", Subresource: "status", Manager: "me"}},
		{http.MethodPatch, web + "?fieldManager=applier",
			`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","labels":{"x":"y"}}}`,
			map[string]string{"Content-Type": "application/apply-patch+yaml"},
			sqlstore.Author{Verb: "apply", Manager: "applier"}},
		{http.MethodPut, web + "/scale?fieldManager=putter",
			`{"metadata":{"name":"web","namespace":"first"},"spec":{"replicas":4}}`, nil,
			sqlstore.Author{Verb: "update", Subresource: "scale", Manager: "putter"}},
		{http.MethodPatch, web + "?fieldManager=me", `{"metadata":{"finalizers":["example.com/f"]}}`,
			map[string]string{"Content-Type": merge}, sqlstore.Author{Verb: "patch", Manager: "me"}},
		{http.MethodDelete, web, "", nil, sqlstore.Author{Verb: "delete"}}, // an update
		{http.MethodPatch, web + "?fieldManager=me", `{"metadata":{"finalizers":null}}`,
			map[string]string{"Content-Type": merge}, sqlstore.Author{Verb: "patch", Manager: "me"}},
		{http.MethodPost, configMaps + "?fieldManager=me", `{"metadata":{"name":"c"}}`, nil,
			sqlstore.Author{Verb: "create", Manager: "me"}},
		{http.MethodDelete, configMaps, "", nil, sqlstore.Author{Verb: "deletecollection"}},
		{http.MethodPost, configMaps + "?fieldManager=me", `{"metadata":{"name":"c"}}`, nil,
			sqlstore.Author{Verb: "create", Manager: "me"}},
		{http.MethodDelete, configMaps + "/c", "", nil, sqlstore.Author{Verb: "delete"}},
	} {
		resp, answer := call{method: test.method, path: test.path, body: test.body, header: test.header}.answer(t, s.bytes)
		if resp.StatusCode >= 300 {
			t.Fatalf("%s %s: %s", test.method, test.path, answer)
		}
		state, err := driver.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		changes, err := driver.Changes(t.Context(), sqlstore.ChangesQuery{After: state.Revision - 1, Limit: 1})
		if err != nil || len(changes) != 1 {
			t.Fatal(changes, err)
		}
		got := changes[0].Author
		got.AuditID = ""
		test.want.User = someone.Name
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s %s (-want +recorded):\n%s", test.method, test.path, diff)
		}
	}
}
