package storage

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
	"byre/watch"
)

// Readers get a record's own bytes, unless they are encrypted or of another encoding. In those
// two cases readers get bytes from the cache of representations.
func TestRecord_SharesItsBytes(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){"plain": func(*Config) {}, "encrypted": withPrefix} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, backends()[0], change)
			f.create(t, "ns", "own", "")
			if name == "plain" {
				f.another(t)
			}
			read := func() (texts []string) {
				list, err := f.ListEncoded(t.Context(), "/pods/", all(), f.Stored())
				if err != nil {
					t.Fatal(err)
				}
				for e, err := range list.Items {
					if err != nil {
						t.Fatal(err)
					}
					texts = append(texts, string(e.AppendJSON(nil, true)))
				}
				return texts
			}
			before := fmt.Sprint(read())
			snapshot, err := f.feed.Snapshot(t.Context(), f.records.resource())
			if err != nil {
				t.Fatal(err)
			}
			for e := range snapshot.All("", nil) {
				stored, err := f.serializer.Represent(t.Context(), e, f.Stored())
				if err != nil {
					t.Fatal(err)
				}
				if stored.Shared != (e.Encoding == f.cfg.Encoding && name == "plain") || stored.Shared && !e.Holds(stored.Body) {
					t.Errorf("%s: shared is %v", e.Name, stored.Shared)
				}
			}
			if after := fmt.Sprint(read()); after != before {
				t.Errorf("it was %s and is %s", before, after)
			}
		})
	}
}

// A value that is held compressed reads as before: whole, by a label, by a field, by metadata, and when it is changed.
func TestRecord_ReadsAlikeCompressed(t *testing.T) {
	t.Parallel()
	f := newFixtureWith(t, backends()[0], watch.Options{CheckInterval: time.Millisecond})
	pod := &example.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "long", Labels: map[string]string{"a": "1"}, Annotations: map[string]string{"text": strings.Repeat("a long text; ", 300)}},
		Spec:       example.PodSpec{NodeName: "node"},
	}
	if err := f.Create(t.Context(), "/pods/ns/long", pod, &example.Pod{}, 0); err != nil {
		t.Fatal(err)
	}
	f.create(t, "ns", "short", "a=2")
	onNode := func(o *storage.ListOptions) {
		o.Predicate.Field, o.Predicate.GetAttrs = fields.OneTermEqualSelector("spec.nodeName", "node"), podAttrs
	}
	read := func() []string {
		var read []string
		for _, opts := range []storage.ListOptions{all(), all(labelled("a=1")), all(onNode)} {
			items, _ := f.listed(t, "/pods/", opts)
			read = append(read, items...)
		}
		got := &example.Pod{}
		if err := f.Get(t.Context(), "/pods/ns/long", storage.GetOptions{ResourceVersion: "0"}, got); err != nil {
			t.Fatal(err)
		}
		return append(read, f.wire(t, got))
	}
	entry := func() *watch.Entry {
		snapshot, err := f.feed.Snapshot(t.Context(), f.records.resource())
		if err != nil {
			t.Fatal(err)
		}
		return snapshot.Get("ns", "long")
	}
	before := read()
	if len(before) != 5 {
		t.Fatalf("%d objects", len(before))
	}
	for e := entry(); e.Holds(e.Value()); e = entry() {
		time.Sleep(20 * time.Millisecond)
	}
	if after := read(); !slices.Equal(after, before) {
		t.Errorf("it was %.200s and is %.200s", before, after)
	}
	changed := f.label(t, "ns", "long", "b", "2")
	if changed.Labels["b"] != "2" || changed.Annotations["text"] != pod.Annotations["text"] {
		t.Errorf("after a change: %v", changed.Labels)
	}
}

// another stores a Pod as another version of the program would.
func (f *fixture) another(t *testing.T) {
	t.Helper()
	_, err := f.store.Commit(t.Context(), sqlstore.Write{
		Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Namespace: "ns", Name: "other"}, Encoding: "another",
		Value: []byte(`{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"other","namespace":"ns"}}`),
	})
	if err != nil {
		t.Fatal(err)
	}
}
