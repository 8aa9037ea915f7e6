package storage

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	basecompatibility "k8s.io/component-base/compatibility"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/api/testing" // installs every built-in group
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/features"

	"byre/sqlstore/storetest"
)

// Storage versions must equal those of a stock kube-apiserver, or a later program cannot
// read what this one wrote.
func TestBuiltinEncoding_IsTheStockStorageVersion(t *testing.T) {
	t.Parallel()
	encoding := builtinEncoding(nil)
	for gr, want := range map[schema.GroupResource]string{
		{Resource: "pods"}:                                              "v1",
		{Group: "apps", Resource: "deployments"}:                        "apps/v1",
		{Group: "coordination.k8s.io", Resource: "leasecandidates"}:     "coordination.k8s.io/v1beta1",
		{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}: "certificates.k8s.io/v1beta1",
	} {
		got, err := encoding.StorageEncodingFor(gr)
		if err != nil || got.String() != want {
			t.Errorf("%s is stored as %s (%v), want %s", gr, got, err, want)
		}
	}
}

func internal(gvk schema.GroupVersionKind) schema.GroupVersion {
	return schema.GroupVersion{Group: gvk.Group, Version: runtime.APIVersionInternal}
}

// fixtures are upstream's own objects, one of each kind, with every field set.
func fixtures(t *testing.T) []string {
	files, err := filepath.Glob(filepath.Join(storetest.ModuleDir(t, "k8s.io/api"), "testdata", "HEAD", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// notStored are kinds with an internal version whose objects no server stores.
var notStored = []string{
	"Binding", "DeleteOptions", "Eviction", "LocalSubjectAccessReview", "PodStatusResult", "RangeAllocation", "Scale",
	"SelfSubjectAccessReview", "SelfSubjectReview", "SelfSubjectRulesReview", "SerializedReference", "Status",
	"SubjectAccessReview", "TokenRequest", "TokenReview", "AdmissionReview", "ImageReview", "Policy",
}

// TestDefaults_ThatAnEncodeUndoesAreStored derives which kinds can be stored so that a decode
// gives another object: a default that applies to a missing field does not apply to an empty
// one, such as the allocatable of a Node, but an encode leaves out the empty field. Reads are
// answered with the stored bytes, so the encode of these resources must be that of
// builtinDefaultedOnRead. The objects are upstream's, with every field set, in which one field
// after another is emptied or left out.
func TestDefaults_ThatAnEncodeUndoesAreStored(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("encodes each object a hundred times")
	}
	resources := BuiltinResources(compatibility.DefaultBuildEffectiveVersion())
	var mu sync.Mutex
	undone := map[schema.GroupResource]bool{}
	t.Run("kinds", func(t *testing.T) {
		for _, file := range fixtures(t) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			c, ok := newEmptiedCase(resources, data)
			if !ok {
				continue
			}
			t.Run(c.gvk.String(), func(t *testing.T) {
				t.Parallel()
				if c.isUndone(t, c.raw) {
					mu.Lock()
					undone[c.resource] = true
					mu.Unlock()
				}
				if resources.DefaultedOnRead[c.resource] && c.isUndone(t, c.stored) {
					t.Error("what is stored is decoded to another object")
				}
			})
		}
	})
	want := builtinDefaultedOnRead()
	// The strategies of these set fields after the defaulting.
	delete(want, schema.GroupResource{Group: "batch", Resource: "jobs"})
	delete(want, schema.GroupResource{Resource: "persistentvolumeclaims"})
	if !maps.Equal(undone, want) {
		t.Errorf("an encode undoes defaults of %v, builtinDefaultedOnRead has %v besides those of strategies", undone, want)
	}
}

// emptiedCase is one kind in one version.
type emptiedCase struct {
	gvk      schema.GroupVersionKind
	resource schema.GroupResource
	object   map[string]any
	// request decodes what a client sends. stored is the codec of the store, and raw the same
	// without the table.
	request, stored, raw runtime.Codec
}

func newEmptiedCase(resources *SchemeResources, data []byte) (emptiedCase, bool) {
	obj, gvk, err := legacyscheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		return emptiedCase{}, false // not of a built-in group
	}
	c := emptiedCase{gvk: *gvk, request: legacyscheme.Codecs.LegacyCodec(gvk.GroupVersion())}
	plural, _ := meta.UnsafeGuessKindToResource(*gvk)
	c.resource = resources.StoredAs(plural.GroupResource())
	example, err := legacyscheme.Scheme.New(internal(*gvk).WithKind(gvk.Kind))
	if _, isObject := obj.(metaObject); err != nil || !isObject || slices.Contains(notStored, gvk.Kind) {
		return emptiedCase{}, false
	}
	config, _, err := resources.StoreConfig(c.resource, example)
	if err != nil {
		return emptiedCase{}, false
	}
	plain := *resources
	plain.DefaultedOnRead = nil
	raw, _, err := plain.StoreConfig(c.resource, example)
	if err != nil || json.Unmarshal(data, &c.object) != nil {
		return emptiedCase{}, false
	}
	c.stored, c.raw = config.Codec, raw.Codec
	return c, true
}

type metaObject interface{ GetName() string }

// batches is the number of groups into which the fields are divided. The fields of a group are
// emptied together.
const batches = 12

// isUndone reports whether a decode gives another object than was encoded, for any object with
// emptied fields.
func (c emptiedCase) isUndone(t *testing.T, codec runtime.Codec) bool {
	t.Helper()
	all := paths(c.object, nil)
	for _, remove := range []bool{false, true} {
		for batch := range batches {
			var chosen [][]any
			for i, path := range all {
				if i%batches == batch {
					chosen = append(chosen, path)
				}
			}
			if c.differs(t, codec, chosen, remove) {
				return true
			}
		}
	}
	return false
}

// differs empties or removes the fields. If the object can't be decoded then, it tries each
// half of them.
func (c emptiedCase) differs(t *testing.T, codec runtime.Codec, fields [][]any, remove bool) bool {
	t.Helper()
	if len(fields) == 0 {
		return false
	}
	object := runtime.DeepCopyJSON(toInt64(c.object).(map[string]any))
	for _, path := range slices.Backward(fields) { // the deeper ones first
		empty(object, path, remove)
	}
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	obj, err := runtime.Decode(c.request, data)
	if err != nil {
		if len(fields) == 1 {
			return false
		}
		half := len(fields) / 2
		return c.differs(t, codec, fields[:half], remove) || c.differs(t, codec, fields[half:], remove)
	}
	first, err := runtime.Encode(codec, obj)
	if err != nil {
		return false
	}
	decoded, err := runtime.Decode(codec, first)
	if err != nil {
		t.Fatalf("%v in %s", err, first)
	}
	second, err := runtime.Encode(c.raw, decoded)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(bytes.TrimSpace(first), bytes.TrimSpace(second)) {
		t.Logf("%s: stored\n%s decoded\n%s", c.gvk, difference(first, second), difference(second, first))
		return true
	}
	return false
}

// difference returns the part of a from where it differs from b.
func difference(a, b []byte) string {
	at := 0
	for at < min(len(a), len(b)) && a[at] == b[at] {
		at++
	}
	return fmt.Sprintf("…%s…", a[max(0, at-80):min(len(a), at+120)])
}

// paths are those of all fields below spec, status and the like, and of the first item of each
// list. A field comes before those in it.
func paths(value any, prefix []any) [][]any {
	var all [][]any
	visit := func(key, value any) {
		path := append(slices.Clone(prefix), key)
		all = append(append(all, path), paths(value, path)...)
	}
	switch value := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			if len(prefix) > 0 || !strings.Contains("kind apiVersion metadata", key) {
				visit(key, value[key])
			}
		}
	case []any:
		if len(value) > 0 {
			visit(0, value[0])
		}
	}
	return all
}

// empty empties the field at path, or removes it.
func empty(parent any, path []any, remove bool) {
	for _, key := range path[:len(path)-1] {
		switch at := parent.(type) {
		case map[string]any:
			parent = at[key.(string)]
		case []any:
			parent = at[0]
		}
	}
	object, ok := parent.(map[string]any)
	if !ok {
		return // an item of a list
	}
	key := path[len(path)-1].(string)
	if remove {
		delete(object, key)
		return
	}
	switch object[key].(type) {
	case map[string]any:
		object[key] = map[string]any{}
	case []any:
		object[key] = []any{}
	case string:
		object[key] = ""
	case bool:
		object[key] = false
	case int64:
		object[key] = int64(0)
	}
}

// toInt64 replaces numbers, all of which are whole, so that DeepCopyJSON accepts them.
func toInt64(value any) any {
	switch value := value.(type) {
	case map[string]any:
		copied := map[string]any{}
		for key, field := range value {
			copied[key] = toInt64(field)
		}
		return copied
	case []any:
		copied := make([]any, len(value))
		for i, item := range value {
			copied[i] = toInt64(item)
		}
		return copied
	case float64:
		return int64(value)
	}
	return value
}

func TestRoundTrip_EncodesWhatDecodingGives(t *testing.T) {
	t.Parallel()
	codec := roundTripCodec{legacyscheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion)}
	// The strategy of a claim clears its status.
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	data, err := runtime.Encode(codec, claim)
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := runtime.Decode(codec, data)
	if err != nil {
		t.Fatal(err)
	}
	again, err := runtime.Encode(legacyscheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion), decoded)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), `"phase":"Pending"`) || string(data) != string(again) {
		t.Errorf("encoded %s, which decodes to %s", data, again)
	}
}

// The name of the program changes with all that a decode depends on. It does not run beside
// other tests, because the feature gates are the process's.
func TestProgram_CoversWhatADecodeDependsOn(t *testing.T) {
	plain := compatibility.DefaultBuildEffectiveVersion()
	names := map[string]string{Program(plain): "as by default"}
	see := func(what string, effective basecompatibility.EffectiveVersion) {
		t.Helper()
		name := Program(effective)
		if before, ok := names[name]; ok {
			t.Errorf("%s has the name of %s: %s", what, before, name)
		}
		names[name] = what
	}
	see("another patch level", basecompatibility.NewEffectiveVersionFromString("1.37.99", "", ""))
	see("another release", basecompatibility.NewEffectiveVersionFromString("1.35", "", ""))
	emulating := compatibility.DefaultBuildEffectiveVersion()
	emulating.SetEmulationVersion(plain.BinaryVersion().OffsetMinor(-1))
	see("another emulated version", emulating)
	t.Run("gates", func(t *testing.T) {
		gate := features.MaxUnavailableStatefulSet
		was := utilfeature.DefaultFeatureGate.Enabled(gate)
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, gate, !was)
		see("another gate", plain)
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, gate, was)
		if name := Program(plain); names[name] != "as by default" {
			t.Errorf("with the gate as by default it is %s", names[name])
		}
	})
}
