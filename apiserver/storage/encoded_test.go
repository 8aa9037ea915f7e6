package storage

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"byre/apiserver/storage/encoding"
	"byre/sqlstore"
	"byre/watch"
)

// encoding.Encoded reads and decoded reads return the same objects.
func TestEncoded_EqualsDecoded(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		f := newFixture(t, b)
		for i := range 30 {
			f.create(t, fmt.Sprint("ns-", i%3), fmt.Sprint("pod-", i), fmt.Sprintf("even=%t", i%2 == 0))
		}
		f.label(t, "ns-0", "pod-3", "even", "true")
		old := f.feed.Revision()
		f.delete(t, "ns-1", "pod-4")
		f.label(t, "ns-2", "pod-5", "even", "true")

		for name, c := range map[string]struct {
			key  string
			opts storage.ListOptions
		}{
			"all":       {"/pods", all()},
			"any":       {"/pods", all(from(0))},
			"namespace": {"/pods/ns-1", all()},
			"selected":  {"/pods", all(labelled("even=true"))},
			"page":      {"/pods", all(func(o *storage.ListOptions) { o.Predicate.Limit = 7 })},
			"exact": {"/pods", all(from(old), func(o *storage.ListOptions) {
				o.ResourceVersionMatch = metav1.ResourceVersionMatchExact
			})},
			"one":     {"/pods/ns-0/pod-3", storage.ListOptions{Predicate: storage.Everything}},
			"nothing": {"/pods/elsewhere", all()},
			"by a field": {"/pods", all(func(o *storage.ListOptions) {
				o.Predicate.Field = fields.ParseSelectorOrDie("metadata.name=pod-3")
			})},
		} {
			t.Run(name, func(t *testing.T) {
				var decoded example.PodList
				if err := f.GetList(t.Context(), c.key, c.opts, &decoded); err != nil {
					t.Fatal(err)
				}
				items, list := f.listed(t, c.key, c.opts)
				if list.ResourceVersion != decoded.ResourceVersion || list.Continue != decoded.Continue ||
					fmt.Sprint(deref(list.RemainingItemCount)) != fmt.Sprint(deref(decoded.RemainingItemCount)) {
					t.Errorf("metadata %s %q %v, want %s %q %v", list.ResourceVersion, list.Continue, list.RemainingItemCount,
						decoded.ResourceVersion, decoded.Continue, decoded.RemainingItemCount)
				}
				if len(items) != len(decoded.Items) {
					t.Fatalf("%d items, want %d", len(items), len(decoded.Items))
				}
				for i := range items {
					if want := f.wire(t, &decoded.Items[i]); items[i] != want {
						t.Errorf("item %d:\n got %s\nwant %s", i, items[i], want)
					}
				}
			})
		}
		t.Run("get", func(t *testing.T) {
			got, err := f.GetEncoded(t.Context(), "/pods/ns-0/pod-3", storage.GetOptions{}, f.Stored())
			var want example.Pod
			if err2 := f.Get(t.Context(), "/pods/ns-0/pod-3", storage.GetOptions{}, &want); err != nil || err2 != nil {
				t.Fatal(err, err2)
			}
			if raw := string(got.AppendJSON(nil, true)); raw != f.wire(t, &want) {
				t.Errorf("got %s\nwant %s", raw, f.wire(t, &want))
			}
			if _, err := f.GetEncoded(t.Context(), "/pods/ns-0/none", storage.GetOptions{IgnoreNotFound: true},
				f.Stored()); !storage.IsNotFound(err) {
				t.Errorf("what is not there gives %v", err)
			}
		})
	})
}

func deref(n *int64) any {
	if n == nil {
		return nil
	}
	return *n
}

// countingCodec counts the objects that it decodes.
type countingCodec struct {
	runtime.Codec
	decodes *atomic.Int64
}

func (c countingCodec) Decode(
	data []byte, defaults *schema.GroupVersionKind, into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	c.decodes.Add(1)
	return c.Codec.Decode(data, defaults, into)
}

// A create, and reads of what it created, decode nothing: neither for selectors, nor for
// the index, nor for the answer.
func TestEncoded_DecodesNothing(t *testing.T) {
	t.Parallel()
	var decodes atomic.Int64
	f := newFixture(t, backends()[0], func(cfg *Config) { cfg.Codec = countingCodec{cfg.Codec, &decodes} })
	f.listed(t, "/pods", all())
	w := f.watch(t, all(labelled("x=1")))
	node := func(o *storage.ListOptions) { o.Predicate.Field = fields.ParseSelectorOrDie("spec.nodeName=") }
	byNode := f.watch(t, all(node))
	for i := range 50 {
		f.create(t, "ns", fmt.Sprint(i), fmt.Sprint("x=", i%2))
	}
	events(t, w, 25)
	events(t, byNode, 50)
	for want, opts := range map[int]storage.ListOptions{50: all(node), 25: all(labelled("x=1"))} {
		if items, _ := f.listed(t, "/pods", opts); len(items) != want {
			t.Errorf("%d items, want %d", len(items), want)
		}
	}
	if _, err := f.GetEncoded(t.Context(), "/pods/ns/1", storage.GetOptions{}, f.Stored()); err != nil {
		t.Fatal(err)
	}
	if n := decodes.Load(); n != 0 {
		t.Errorf("%d values were decoded", n)
	}
}

// A record that another program wrote is answered in the bytes that this program's encoder
// writes for the decoded object. An update that changes nothing stores it again.
func TestStaleForm_IsEncodedAgain(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		f := newFixture(t, b, func(cfg *Config) { cfg.Encoding = "newer" })
		at := f.records.at("ns", "old")
		old := []byte(
			`{"apiVersion":"example.apiserver.k8s.io/v1","kind":"Pod","metadata":{"namespace":"ns","name":"old"},"unknown":1}`)
		change, err := f.store.Commit(t.Context(),
			sqlstore.Write{Op: sqlstore.Create, Key: at.Key, Encoding: "older", Value: old})
		if err != nil {
			t.Fatal(err)
		}
		want := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "old",
			ResourceVersion: fmt.Sprint(change.Revision)}}
		read := func() string {
			e, err := f.GetEncoded(t.Context(), "/pods/ns/old", storage.GetOptions{}, f.Stored())
			if err != nil {
				t.Fatal(err)
			}
			return string(e.AppendJSON(nil, true))
		}
		want.Spec = decodeDefaults(t, f, old)
		if got := read(); got != f.wire(t, want) {
			t.Errorf("got %s\nwant %s", got, f.wire(t, want))
		}
		out := &example.Pod{}
		same := storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) { return in, nil })
		for range 2 { // the second update writes nothing
			if err := f.GuaranteedUpdate(t.Context(), "/pods/ns/old", out, false, nil, same, nil); err != nil {
				t.Fatal(err)
			}
			if out.ResourceVersion != fmt.Sprint(change.Revision+1) {
				t.Errorf("is at %s, want %d", out.ResourceVersion, change.Revision+1)
			}
		}
		record, _, err := f.store.Get(t.Context(), at.Key)
		if err != nil || record.Encoding != "newer" || bytes.Contains(record.Value, []byte("unknown")) {
			t.Errorf("stored as %q: %s (%v)", record.Encoding, record.Value, err)
		}
	})
}

// TestStaleForm_OfTheSameBytesIsLeft: two replicas of different versions do not write an object in turns which nobody
// changes.
func TestStaleForm_OfTheSameBytesIsLeft(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		f := newFixture(t, b, func(cfg *Config) { cfg.Encoding = "newer" })
		out := &example.Pod{}
		if err := f.Create(t.Context(), "/pods/ns/old",
			&example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "old"}}, out, 0); err != nil {
			t.Fatal(err)
		}
		record, _, err := f.store.Get(t.Context(), f.records.at("ns", "old").Key)
		if err != nil {
			t.Fatal(err)
		}
		change, err := f.store.Commit(t.Context(), sqlstore.Write{
			Op: sqlstore.Update, Key: record.Key, Replaces: record.Revision, UID: record.UID, Encoding: "older",
			Value: record.Value,
		})
		if err != nil {
			t.Fatal(err)
		}
		same := storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) { return in, nil })
		if err := f.GuaranteedUpdate(t.Context(), "/pods/ns/old", out, false, nil, same, nil); err != nil ||
			out.ResourceVersion != fmt.Sprint(change.Revision) {
			t.Errorf("is at %s, want %d: %v", out.ResourceVersion, change.Revision, err)
		}
	})
}

func decodeDefaults(t *testing.T, f *fixture, data []byte) example.PodSpec {
	obj, err := runtime.Decode(f.codec, data)
	if err != nil {
		t.Fatal(err)
	}
	return obj.(*example.Pod).Spec
}

// agingCodec counts what it decodes in the labels: each object that is decoded is another.
type agingCodec struct {
	runtime.Codec
	decodes *atomic.Int64
}

func (c agingCodec) Decode(
	data []byte, defaults *schema.GroupVersionKind, into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, kind, err := c.Codec.Decode(data, defaults, into)
	if pod, ok := obj.(*example.Pod); ok {
		pod.Labels = map[string]string{"decoded": fmt.Sprint(c.decodes.Add(1))}
	}
	return obj, kind, err
}

// Where decoding a record again may give another object, a GET without resourceVersion
// decodes it again. Other readers share what was made of it until it expires.
func TestEncoded_DecodesAgainWhatMayChange(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		var decodes atomic.Int64
		var ahead [][]byte
		f := newFixture(t, b, func(cfg *Config) {
			cfg.Codec, cfg.Lossy, cfg.DecodedAge = agingCodec{cfg.Codec, &decodes}, true, time.Hour
			cfg.DecodeAhead = func(_ context.Context, values [][]byte) { ahead = append(ahead, values...) }
		})
		f.create(t, "ns", "a", "x=1")
		f.create(t, "ns", "b", "x=1")
		converted := encoding.JSON("converted", func(_ context.Context, obj runtime.Object) ([]byte, error) {
			return runtime.Encode(f.codec, obj)
		})
		list := func() string {
			t.Helper()
			l, err := f.ListEncoded(t.Context(), "/pods", all(), converted)
			if err != nil {
				t.Fatal(err)
			}
			var texts []string
			for item, err := range l.Items {
				if err != nil {
					t.Fatal(err)
				}
				texts = append(texts, string(item.AppendJSON(nil, true)))
			}
			return strings.Join(texts, "\n")
		}
		get := func(resourceVersion string) string {
			t.Helper()
			e, err := f.GetEncoded(t.Context(), "/pods/ns/a", storage.GetOptions{ResourceVersion: resourceVersion}, converted)
			if err != nil {
				t.Fatal(err)
			}
			return string(e.AppendJSON(nil, true))
		}
		first := list()
		if len(ahead) != 2 {
			t.Errorf("%d values were decoded ahead, want 2", len(ahead))
		}
		if again := list(); again != first || len(ahead) != 2 {
			t.Errorf("a list shares nothing, after %d values decoded ahead: %s, was %s", len(ahead), again, first)
		}
		if a, z := get("0"), get("0"); a != z || !strings.HasPrefix(first, a) {
			t.Errorf("a GET of any version shares nothing: %s, then %s", a, z)
		}
		if a, z := get(""), get(""); a == z {
			t.Errorf("a GET of the latest version is shared: %s", a)
		}
	})
}

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
				if stored.Shared != (e.Encoding == f.cfg.Encoding && name == "plain") ||
					stored.Shared && !bytes.Equal(stored.Body, e.Value()) {
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
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "long", Labels: map[string]string{"a": "1"},
			Annotations: map[string]string{"text": strings.Repeat("a long text; ", 300)}},
		Spec: example.PodSpec{NodeName: "node"},
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
	isHeld := func(e *watch.Entry) bool { // until each read makes a copy
		first, second := e.Value(), e.Value()
		return &first[0] == &second[0]
	}
	for isHeld(entry()) {
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
		Value: []byte(
			`{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"other","namespace":"ns"}}`),
	})
	if err != nil {
		t.Fatal(err)
	}
}
