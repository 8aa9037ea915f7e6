package storage

import (
	"bytes"
	"crypto/aes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"byre/apiserver/storage/encoding"
	"byre/sqlstore"
)

// gcm returns the transformer of upstream's aesgcm configuration: it encrypts with the
// first key and decrypts with any of the keys, and reads plain values.
func gcm(t *testing.T, keys ...string) value.Transformer {
	var transformers []value.PrefixTransformer
	for _, key := range keys {
		block, err := aes.NewCipher([]byte(strings.Repeat(key, 32)[:32]))
		if err != nil {
			t.Fatal(err)
		}
		transformer, err := aestransformer.NewGCMTransformer(block)
		if err != nil {
			t.Fatal(err)
		}
		transformers = append(transformers, value.PrefixTransformer{
			Prefix:      []byte("k8s:enc:aesgcm:v1:" + key + ":"),
			Transformer: transformer,
		})
	}
	transformers = append(transformers, value.PrefixTransformer{Transformer: identity.NewEncryptCheckTransformer()})
	return value.NewPrefixTransformers(errors.New("no key fits"), transformers...)
}

func TestEncryption_HidesStoredValues(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		f := newFixture(t, b, func(cfg *Config) { cfg.Transformer = gcm(t, "k1") })
		f.create(t, "ns", "secret", "x=1")
		record := f.record(t, "ns", "secret")
		var text string
		if err := json.Unmarshal(record.Value, &text); err != nil || !strings.HasPrefix(text, "k8s:enc:aesgcm:v1:k1:") {
			t.Errorf("stored as %s (%v)", record.Value, err)
		}
		f.forget()
		var pod example.Pod
		if err := f.Get(t.Context(), "/pods/ns/secret", storage.GetOptions{}, &pod); err != nil || pod.Labels["x"] != "1" {
			t.Errorf("got %+v, %v", pod.ObjectMeta, err)
		}
		if items, _ := f.listed(t, "/pods", all(labelled("x=1"))); len(items) != 1 ||
			!strings.Contains(items[0], `"name":"secret"`) {
			t.Errorf("listed %v", items)
		}
		// A value is authenticated with its key: under another key it cannot be decrypted.
		moved := record
		moved.Name = "moved"
		write := sqlstore.Write{Op: sqlstore.Create, Key: moved.Key, Encoding: moved.Encoding, Value: moved.Value}
		if _, err := f.store.Commit(t.Context(), write); err != nil {
			t.Fatal(err)
		}
		if err := f.Get(t.Context(), "/pods/ns/moved", storage.GetOptions{}, &pod); !storage.IsCorruptObject(err) {
			t.Errorf("a moved value gives %v", err)
		}
	})
}

// An update that changes nothing encrypts an object with the new key; this is how keys are
// rotated.
func TestEncryption_UpdateRotatesTheKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t, backends()[0], func(cfg *Config) { cfg.Transformer = gcm(t, "k1") })
	f.create(t, "ns", "secret", "x=1")
	f.swap(gcm(t, "k2", "k1"))
	before := f.record(t, "ns", "secret")
	f.label(t, "ns", "secret", "x", "1")
	after := f.record(t, "ns", "secret")
	if !bytes.HasPrefix(after.Value, []byte(`"k8s:enc:aesgcm:v1:k2:`)) || after.Revision == before.Revision {
		t.Errorf("stored as %s at %d", after.Value, after.Revision)
	}
	f.label(t, "ns", "secret", "x", "1")
	if again := f.record(t, "ns", "secret"); again.Revision != after.Revision {
		t.Error("was written again without need")
	}
}

// A store without a key refuses values that are still encrypted.
func TestEncryption_RefusesAValueWithoutAKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t, backends()[0])
	write := sqlstore.Write{Op: sqlstore.Create, Key: f.records.at("ns", "secret").Key, Encoding: f.cfg.Encoding,
		Value: encoding.WrapEncrypted([]byte("k8s:enc:aesgcm:v1:k1:\x00\x01"))}
	if _, err := f.store.Commit(t.Context(), write); err != nil {
		t.Fatal(err)
	}
	err := f.Get(t.Context(), "/pods/ns/secret", storage.GetOptions{}, &example.Pod{})
	if !storage.IsCorruptObject(err) ||
		!strings.Contains(err.Error(), "identity transformer tried to read encrypted data") {
		t.Errorf("got %v", err)
	}
}

// A list of objects of which some can't be decrypted names all of these, before anything of it is sent.
func TestEncryption_ListNamesEachValueWithoutAKey(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		f := newFixture(t, b, func(cfg *Config) { cfg.Transformer = gcm(t, "k1") })
		f.create(t, "ns", "10", "x=1")
		f.create(t, "ns", "40", "x=2")
		f.swap(gcm(t, "k2"))
		for i := range 50 {
			if i != 10 && i != 40 {
				f.create(t, "ns", fmt.Sprintf("%02d", i), "x=1")
			}
		}
		named := func(what string, opts storage.ListOptions, want ...string) {
			t.Helper()
			f.forget()
			_, err := f.ListEncoded(t.Context(), "/pods", opts, f.Stored())
			var status apierrors.APIStatus
			if !errors.As(err, &status) || status.Status().Reason != metav1.StatusReasonStoreReadError ||
				status.Status().Code != 500 {
				t.Errorf("%s: %v", what, err)
				return
			}
			var got []string
			for _, cause := range status.Status().Details.Causes {
				got = append(got, cause.Field)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s names %q, want %q", what, got, want)
			}
		}
		limited := func(o *storage.ListOptions) { o.Predicate.Limit = 45 }
		named("a list", all(), "/registry/pods/ns/10", "/registry/pods/ns/40")
		named("a page", all(limited), "/registry/pods/ns/10", "/registry/pods/ns/40")
		f.serializer.Transformer = encoding.NewTransformer(nil) // no encryption is configured any more
		for i := range 10 {
			f.create(t, "a", fmt.Sprint(i), "x=1")
		}
		f.forget()
		if _, err := f.ListEncoded(t.Context(), "/pods/a", all(), f.Stored()); err != nil {
			t.Errorf("the objects that are readable: %v", err)
		}
		f.forget()
		if _, err := f.ListEncoded(t.Context(), "/pods", all(), f.Stored()); !apierrors.IsStoreReadError(err) {
			t.Errorf("without encryption: %v", err)
		}
	})
}

// After a key was removed, as Kubernetes describes it: all objects are written with the new key,
// and history still needs the old one. What needs that history answers 410, and clients list the
// current objects. The log names the key once.
func TestEncryption_HistoryOfARemovedKeyIsExpired(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		f := newFixture(t, b, func(cfg *Config) { cfg.Transformer = gcm(t, "k1") })
		for _, name := range []string{"changed", "deleted", "later"} {
			f.create(t, "ns", name, "x=1")
		}
		past := fmt.Sprint(f.feed.Revision())
		f.swap(gcm(t, "k2", "k1"))
		f.label(t, "ns", "changed", "x", "2")
		f.label(t, "ns", "later", "x", "2")
		f.delete(t, "ns", "deleted")
		f.feed.Forget(f.records.resource()) // a restart with the new key alone
		f.swap(gcm(t, "k2"))

		if items, _ := f.listed(t, "/pods", all(labelled("x=2"))); len(items) != 2 {
			t.Errorf("listed %v", items)
		}
		at := func(o *storage.ListOptions) {
			o.ResourceVersion, o.ResourceVersionMatch = past, metav1.ResourceVersionMatchExact
		}
		token, err := storage.EncodeContinue("/pods/ns/changed\x00", "/pods/", f.feed.Revision()-3)
		if err != nil {
			t.Fatal(err)
		}
		for name, option := range map[string]func(*storage.ListOptions){
			"list":     at,
			"selector": func(o *storage.ListOptions) { at(o); labelled("x=1")(o) },
			"page":     func(o *storage.ListOptions) { o.Predicate.Limit, o.Predicate.Continue = 2, token },
		} {
			_, err := f.ListEncoded(t.Context(), "/pods", all(option), f.Stored())
			var status apierrors.APIStatus
			if !apierrors.IsResourceExpired(err) || !errors.As(err, &status) ||
				(status.Status().Continue != "") != (name == "page") {
				t.Errorf("%s at a past revision: %v", name, err)
			}
			if err := f.GetList(t.Context(), "/pods", all(option), &example.PodList{}); !apierrors.IsResourceExpired(err) {
				t.Errorf("%s of typed objects at a past revision: %v", name, err)
			}
		}
		for name, selector := range map[string]string{"all": "", "selector": "x=1"} {
			w := f.watch(t, all(func(o *storage.ListOptions) {
				o.ResourceVersion = "2"
				if selector != "" {
					labelled(selector)(o)
				}
			}))
			if _, err := w.Next(t.Context()); !apierrors.IsResourceExpired(err) {
				t.Errorf("a watch of %s: %v", name, err)
			}
		}
		var keys []any
		f.records.lostKeys.Range(func(key, _ any) bool { keys = append(keys, key); return true })
		if fmt.Sprint(keys) != "[k8s:enc:aesgcm:v1:k1:]" {
			t.Errorf("the log names %v", keys)
		}
		// A current object that cannot be decrypted is an error, and no history.
		f.swap(gcm(t, "k3"))
		if _, err := f.watch(t, all(from(0))).Next(t.Context()); err == nil || apierrors.IsResourceExpired(err) {
			t.Errorf("the initial events of a watch: %v", err)
		}
		if err := f.GetList(t.Context(), "/pods", all(),
			&example.PodList{}); apierrors.ReasonForError(err) != metav1.StatusReasonStoreReadError {
			t.Errorf("a list of the current objects: %v", err)
		}
	})
}

// With the gate on, objects that cannot be read have an error of their own and can be
// deleted without being read.
func TestUnsafeDeletion_DeletesUnreadableObjects(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
		features.AllowUnsafeMalformedObjectDeletion, true)
	f := newFixture(t, backends()[0])
	for i, broken := range []string{`{"kind":"Nothing","apiVersion":"none/v1"}`, `{"kind":1}`} {
		write := sqlstore.Write{Op: sqlstore.Create, Key: f.records.at("ns", fmt.Sprint(i)).Key, Encoding: "other",
			Value: []byte(broken)}
		if _, err := f.store.Commit(t.Context(), write); err != nil {
			t.Fatal(err)
		}
	}
	f.create(t, "ns", "whole", "")
	if err := f.Get(t.Context(), "/pods/ns/0", storage.GetOptions{}, &example.Pod{}); !storage.IsCorruptObject(err) {
		t.Errorf("get: %v", err)
	}
	err := f.GetList(t.Context(), "/pods", all(), &example.PodList{})
	status, ok := err.(apierrors.APIStatus)
	if !ok || status.Status().Reason != metav1.StatusReasonStoreReadError || len(status.Status().Details.Causes) != 2 {
		t.Errorf("list: %v", err)
	}
	remove := func(opts storage.DeleteOptions) error {
		return f.Delete(t.Context(), "/pods/ns/0", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, opts)
	}
	if err := remove(storage.DeleteOptions{}); !storage.IsCorruptObject(err) {
		t.Errorf("safe delete: %v", err)
	}
	if err := remove(storage.DeleteOptions{ExpectTransformOrDecodeError: true}); err != nil {
		t.Errorf("unsafe delete: %v", err)
	}
}

// record returns the stored record.
func (f *fixture) record(t *testing.T, namespace, name string) sqlstore.Record {
	t.Helper()
	record, _, err := f.store.Get(t.Context(), f.records.at(namespace, name).Key)
	if err != nil {
		t.Fatal(err)
	}
	return record
}
