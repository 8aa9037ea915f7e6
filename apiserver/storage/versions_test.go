package storage

import (
	"bytes"
	"math/rand"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/endpoints/deprecation"
	"k8s.io/apiserver/pkg/registry/generic"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	basecompatibility "k8s.io/component-base/compatibility"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/features"

	"byre/sqlstore"
	"byre/watch"
	"byre/watch/watchtest"
)

// builtinStore is the Store of a built-in resource, as a server has it that starts
// now on a database.
func builtinStore(t *testing.T, b backend, driver sqlstore.Driver, gvk schema.GroupVersionKind, resource string) *Store {
	t.Helper()
	store, feed := watchtest.Run(t, driver, watch.Options{SoleWriter: b.soleWriter})
	getter := NewRESTOptionsGetter(Builtin(store, feed, compatibility.DefaultBuildEffectiveVersion()))
	object := func(kind string) func() runtime.Object {
		return func() runtime.Object {
			obj, err := legacyscheme.Scheme.New(internal(gvk).WithKind(kind))
			if err != nil {
				t.Fatal(err)
			}
			return obj
		}
	}
	var options generic.RESTOptions
	options, err := getter.GetRESTOptions(schema.GroupResource{Group: gvk.Group, Resource: resource}, object(gvk.Kind)())
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := options.Decorator(options.StorageConfig, "/"+options.ResourcePrefix, nil,
		object(gvk.Kind), object(gvk.Kind+"List"), apistorage.DefaultNamespaceScopedAttr, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s.(*Store)
}

// decodeAs is what a client's request in some version becomes.
func decodeAs(t *testing.T, text string) runtime.Object {
	t.Helper()
	obj, gvk, err := legacyscheme.Codecs.UniversalDeserializer().Decode([]byte(text), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	legacyscheme.Scheme.Default(obj)
	hub, err := legacyscheme.Scheme.ConvertToVersion(obj, internal(*gvk))
	if err != nil {
		t.Fatal(err)
	}
	return hub
}

// fromBytes is what is answered from bytes.
func fromBytes(t *testing.T, s *Store, key string) string {
	t.Helper()
	e, err := s.GetEncoded(t.Context(), key, apistorage.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return string(e.AppendJSON(nil, true))
}

// viaDecode is what a decode of it gives, encoded again.
func viaDecode(t *testing.T, s *Store, key string) string {
	t.Helper()
	obj := s.cfg.NewFunc()
	if err := s.Get(t.Context(), key, apistorage.GetOptions{}, obj); err != nil {
		t.Fatal(err)
	}
	data, err := runtime.Encode(s.cfg.Codec, obj)
	if err != nil {
		t.Fatal(err)
	}
	return string(trim(data))
}

// TestAutoscalerOfAnotherVersion: an autoscaler that is written in autoscaling/v1
// has the defaults of autoscaling/v2, in which it is stored.
func TestAutoscalerOfAnotherVersion(t *testing.T) {
	const text = `{"apiVersion":"autoscaling/v1","kind":"HorizontalPodAutoscaler","metadata":{"name":"a","namespace":"ns","annotations":{` +
		`"autoscaling.alpha.kubernetes.io/behavior":"{\"ScaleUp\":{\"StabilizationWindowSeconds\":60}}"}},` +
		`"spec":{"maxReplicas":3,"scaleTargetRef":{"kind":"Deployment","name":"d"}}}`
	onEach(t, func(t *testing.T, b backend) {
		driver := b.open(t)
		t.Cleanup(func() { driver.Close() })
		s := builtinStore(t, b, driver, schema.GroupVersionKind{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}, "horizontalpodautoscalers")
		out := s.cfg.NewFunc()
		if err := s.Create(t.Context(), "/horizontalpodautoscalers/ns/a", decodeAs(t, text), out, 0); err != nil {
			t.Fatal(err)
		}
		answer, err := runtime.Encode(s.cfg.Codec, out)
		if err != nil {
			t.Fatal(err)
		}
		raw := fromBytes(t, s, "/horizontalpodautoscalers/ns/a")
		for what, got := range map[string]string{"the answer": string(trim(answer)), "a read": raw} {
			if !strings.Contains(got, `"scaleDown":{"selectPolicy":"Max","policies":[{"type":"Percent"`) {
				t.Errorf("%s lacks defaults: %s", what, got)
			}
		}
		if want := viaDecode(t, s, "/horizontalpodautoscalers/ns/a"); raw != want {
			t.Errorf("answered from bytes:\n%s\ndecoded:\n%s", raw, want)
		}
	})
}

// TestEveryVersionSettles: whatever version a built-in object is written in, its
// stored bytes are what a decode of them gives. A kind for which they are not needs
// an entry in builtinUnsettled.
func TestEveryVersionSettles(t *testing.T) {
	scheme := legacyscheme.Scheme
	encoding := builtinEncoding(scheme, compatibility.DefaultBuildEffectiveVersion())
	current := version.MustParse(compatibility.DefaultBuildEffectiveVersion().BinaryVersion().String())
	for gvk := range scheme.AllKnownTypes() {
		obj, err := scheme.New(gvk)
		if err != nil {
			t.Fatal(err)
		}
		storageVersion, err := encoding.StorageEncodingFor(schema.GroupResource{Group: gvk.Group})
		if _, isObject := obj.(metav1.Object); !isObject || err != nil || gvk.Version == runtime.APIVersionInternal ||
			!scheme.Recognizes(internal(gvk).WithKind(gvk.Kind)) || !scheme.Recognizes(storageVersion.WithKind(gvk.Kind)) || isRemoved(obj, current) {
			continue
		}
		codec, _, err := serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
			StorageMediaType: runtime.ContentTypeJSON, StorageSerializer: legacyscheme.Codecs,
			StorageVersion: storageVersion, MemoryVersion: internal(gvk),
		})
		if err != nil {
			t.Fatal(err)
		}
		for seed := range int64(20) {
			if first, second := storedTwice(t, codec, gvk, seed); !bytes.Equal(first, second) {
				t.Errorf("%v, stored as %v: stored and decoded differ:\n%s%s", gvk, storageVersion, first, second)
			}
		}
	}
}

// isRemoved tells whether a kind is served no more.
func isRemoved(obj runtime.Object, current *version.Version) bool {
	removed := deprecation.RemovedRelease(obj)
	return removed != "" && version.MustParse(removed).LessThan(current)
}

// storedTwice encodes a random object of a version for storage, and what a decode of
// that gives once more.
func storedTwice(t *testing.T, codec runtime.Codec, gvk schema.GroupVersionKind, seed int64) (first, second []byte) {
	t.Helper()
	obj, err := legacyscheme.Scheme.New(gvk)
	if err != nil {
		t.Fatal(err)
	}
	fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(seed), legacyscheme.Codecs).
		NilChance(0.3).NumElements(0, 2).MaxDepth(12).Fill(obj)
	text, err := runtime.Encode(legacyscheme.Codecs.LegacyCodec(gvk.GroupVersion()), obj)
	if err != nil {
		return nil, nil // no object that a client could have sent
	}
	first, err = runtime.Encode(codec, decodeAs(t, string(text)))
	if err != nil {
		return nil, nil
	}
	settled, err := runtime.Decode(codec, first)
	if err != nil {
		t.Fatal(err)
	}
	if second, err = runtime.Encode(codec, settled); err != nil {
		t.Fatal(err)
	}
	return first, second
}

// TestFormOfGatesAndEmulation: records that were written under other feature gates,
// or as another version, are not taken for this program's own.
func TestFormOfGatesAndEmulation(t *testing.T) {
	gates := utilfeature.DefaultMutableFeatureGate
	effective := compatibility.DefaultBuildEffectiveVersion()
	plain := builtinProgram(effective, gates)
	if want := "v" + effective.BinaryVersion().String(); plain != want {
		t.Errorf("by default: %s, want %s as before", plain, want)
	}
	emulating := basecompatibility.NewEffectiveVersionFromString(effective.BinaryVersion().String(), "", "")
	emulating.SetEmulationVersion(effective.BinaryVersion().SubtractMinor(1))
	if got := builtinProgram(emulating, gates); got == plain {
		t.Errorf("emulating %v: %s", emulating.EmulationVersion(), got)
	}
	on := gates.Enabled(features.MaxUnavailableStatefulSet)
	t.Run("changed", func(t *testing.T) {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.MaxUnavailableStatefulSet, !on)
		if got := builtinProgram(effective, gates); got == plain {
			t.Errorf("with another gate: %s", got)
		}
	})
	t.Run("named", func(t *testing.T) {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.MaxUnavailableStatefulSet, on)
		if got := builtinProgram(effective, gates); got != plain {
			t.Errorf("with a gate as it is by default: %s", got)
		}
	})
}

// TestOtherGates: what was written under other feature gates is answered with the
// defaults of these.
func TestOtherGates(t *testing.T) {
	const (
		text = `{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"a","namespace":"ns"},` +
			`"spec":{"updateStrategy":{"type":"RollingUpdate","rollingUpdate":{}},"template":{"spec":{"containers":[{"name":"c","image":"i"}]}}}}`
		key = "/statefulsets/ns/a"
	)
	onEach(t, func(t *testing.T, b backend) {
		driver := b.open(t)
		t.Cleanup(func() { driver.Close() })
		kind := schema.GroupVersionKind{Group: "apps", Kind: "StatefulSet"}
		t.Run("off", func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.MaxUnavailableStatefulSet, false)
			s := builtinStore(t, b, driver, kind, "statefulsets")
			if err := s.Create(t.Context(), key, decodeAs(t, text), nil, 0); err != nil {
				t.Fatal(err)
			}
			if got := fromBytes(t, s, key); strings.Contains(got, "maxUnavailable") {
				t.Errorf("off: %s", got)
			}
		})
		t.Run("on", func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.MaxUnavailableStatefulSet, true)
			s := builtinStore(t, b, driver, kind, "statefulsets")
			got, want := fromBytes(t, s, key), viaDecode(t, s, key)
			if !strings.Contains(got, `"maxUnavailable":1`) || got != want {
				t.Errorf("on, answered from bytes:\n%s\ndecoded:\n%s", got, want)
			}
		})
	})
}
