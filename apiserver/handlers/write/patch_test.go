package write

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kubetesting "k8s.io/kubernetes/pkg/api/testing"
	_ "k8s.io/kubernetes/pkg/controlplane" // registers all kinds
)

// TestMergeStatus_IsMergeOfWhole patches the status of objects of all kinds, and expects what a merge
// into the whole object gives.
func TestMergeStatus_IsMergeOfWhole(t *testing.T) {
	t.Parallel()
	scheme, kinds := legacyscheme.Scheme, 0
	for kind := range scheme.AllKnownTypes() {
		hub := schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal}
		made, err := scheme.New(hub.WithKind(kind.Kind))
		if kind.Version == runtime.APIVersionInternal || err != nil || reflect.TypeOf(made).Elem().Kind() != reflect.Struct || !hasStatus(made) {
			continue
		}
		kinds++
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			random := fuzzer.FuzzerFor(kubetesting.FuzzerFuncs, rand.NewSource(int64(len(kind.String()))), legacyscheme.Codecs)
			for range 20 {
				live, other := stored(t, kind, hub, random.Fill), stored(t, kind, hub, random.Fill)
				status := statusOf(t, kind, other)
				for _, body := range []string{
					fmt.Sprintf(`{"status":%s}`, status),
					fmt.Sprintf(`{"metadata":{"uid":"u","resourceVersion":null},"status":%s}`, status),
					`{"status":null}`, `{"metadata":{}}`, `{"status":{"$patch":"delete"}}`, `{"kind":null}`, `{"status":7}`,
				} {
					comparePatch(t, kind, hub, live, body)
				}
			}
		})
	}
	if kinds < 50 {
		t.Errorf("%d kinds have a status", kinds)
	}
}

// TestMergeStatus_IsForThatOnly lists patches of a status that name more.
func TestMergeStatus_IsForThatOnly(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`{"metadata":null}`, `{"metadata":{"labels":null}}`, `{"metadata":{"uid":"u","annotations":{}}}`, `{"metadata":{"$patch":"delete"}}`,
		`{"spec":{}}`, `{"Status":{}}`, `{"$patch":"replace"}`, `{"$retainKeys":["status"]}`, `[]`, `7`, `null`,
	} {
		p := &patch{write: &write{Handlers: &Handlers{Scope: &handlers.RequestScope{Subresource: "status"}}}, body: []byte(body)}
		if p.namesStatusOnly() {
			t.Errorf("%s names only the status", body)
		}
	}
	p := &patch{write: &write{Handlers: &Handlers{Scope: &handlers.RequestScope{}}}, body: []byte(`{"status":{}}`)}
	if p.namesStatusOnly() {
		t.Error("a patch of the object itself counts as one of its status")
	}
}

func comparePatch(t *testing.T, kind schema.GroupVersionKind, hub schema.GroupVersion, live runtime.Object, body string) {
	t.Helper()
	for _, media := range []types.PatchType{types.MergePatchType, types.StrategicMergePatchType} {
		scheme := legacyscheme.Scheme
		scope := &handlers.RequestScope{
			Kind: kind, HubGroupVersion: hub, Subresource: "status", Serializer: legacyscheme.Codecs,
			UnsafeConvertor: runtime.UnsafeObjectConvertor(scheme), Creater: scheme, Defaulter: scheme,
		}
		p := &patch{write: &write{Handlers: &Handlers{Scope: scope}}, body: []byte(body), media: media, options: &metav1.PatchOptions{FieldValidation: metav1.FieldValidationIgnore}}
		if err := p.prepare(maker{kind: hub.WithKind(kind.Kind)}); err != nil {
			t.Fatal(err)
		}
		if !p.namesStatusOnly() {
			t.Fatalf("%s names more than the status", body)
		}
		before := live.DeepCopyObject()
		want, wantErr := p.mergeInto(live)
		got, err := p.mergeStatus(live)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%s, %s: %v, want %v", media, body, err, wantErr)
		}
		if err != nil {
			continue
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%s, %s:\n%s\nwant\n%s", media, body, encoded(t, kind, got), encoded(t, kind, want))
		}
		if !apiequality.Semantic.DeepEqual(live, before) {
			t.Fatalf("%s, %s: the live object was changed", media, body)
		}
	}
}

// maker is a patcher that makes objects of a kind, and nothing else.
type maker struct {
	rest.Patcher
	kind schema.GroupVersionKind
}

func (m maker) New() runtime.Object {
	obj, err := legacyscheme.Scheme.New(m.kind)
	if err != nil {
		panic(err)
	}
	return obj
}

// stored returns an object of the internal version as a storage returns one: filled, encoded in the version of
// kind, and decoded with its defaults.
func stored(t *testing.T, kind schema.GroupVersionKind, hub schema.GroupVersion, fill func(any)) runtime.Object {
	t.Helper()
	obj := maker{kind: hub.WithKind(kind.Kind)}.New()
	fill(obj)
	decoded, err := runtime.Decode(legacyscheme.Codecs.UniversalDecoder(hub), []byte(encoded(t, kind, obj)))
	if err != nil {
		t.Fatal(err)
	}
	accessor, err := meta.Accessor(decoded)
	if err != nil {
		t.Fatal(err)
	}
	accessor.SetManagedFields(nil)
	return decoded
}

func encoded(t *testing.T, kind schema.GroupVersionKind, obj runtime.Object) string {
	t.Helper()
	text, err := runtime.Encode(legacyscheme.Codecs.LegacyCodec(kind.GroupVersion()), obj)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func statusOf(t *testing.T, kind schema.GroupVersionKind, obj runtime.Object) string {
	t.Helper()
	var document map[string]json.RawMessage
	if err := json.Unmarshal([]byte(encoded(t, kind, obj)), &document); err != nil {
		t.Fatal(err)
	}
	if document["status"] == nil {
		return "null"
	}
	return string(document["status"])
}
