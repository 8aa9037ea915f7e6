package watch

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"testing"

	"github.com/google/btree"
	"github.com/klauspost/compress/s2"

	"byre/sqlstore"
)

// compressed compresses texts as neighbours.
func compressed(texts []string) []*text {
	c := compression{used: map[*dictionary]int{}}
	held := make([]*text, len(texts))
	waiting := 0
	for i, data := range texts {
		held[i] = newText([]byte(data))
		if waiting += c.add(held[i], func(t *text) { held[i] = t }); waiting >= batchBytes {
			c.flush()
			waiting = 0
		}
	}
	c.flush()
	return held
}

// dictionaries returns the dictionaries of texts.
func dictionaries(texts []*text) map[*dictionary]int {
	all := map[*dictionary]int{}
	for _, t := range texts {
		all[t.dictionary]++
	}
	return all
}

func TestText_IsReadAsItWas(t *testing.T) {
	t.Parallel()
	for _, owners := range []int{1, 5, 100} {
		_, texts := podTexts(200, owners)
		texts = append(texts, strings.Repeat("{\"long\": 0123456789}", 50_000), "")
		held := compressed(texts)
		bytes := 0
		for i, x := range held[:200] {
			bytes += len(x.held)
			if string(x.bytes(nil)) != texts[i] {
				t.Fatalf("%d: %.50q is %.50q", i, texts[i], x.bytes(nil))
			}
		}
		for d := range dictionaries(held[:200]) {
			bytes += len(d.data)
		}
		if bytes/200 > 1200 {
			t.Errorf("a Pod of %d owners takes %d bytes", owners, bytes/200)
		}
	}
}

// A dictionary that is not the text's own gives no other text, also where it is one of the same length.
func TestText_IsNotReadByAnotherDictionary(t *testing.T) {
	t.Parallel()
	_, texts := podTexts(100, 1)
	x := *compressed(texts)[3]
	data := bytes.Clone(x.dictionary.data)
	if !strings.Contains(string(x.bytes(nil)), `"phase":"Running"`) {
		t.Fatal("it is not a Pod")
	}
	other := *x.dictionary
	other.decoder = s2.MakeDictManual(bytes.Replace(data, []byte("Running"), []byte("Pending"), 1), 0)
	for name, d := range map[string]*dictionary{"similar": &other, "none": nil,
		"short": newDictionary([]byte("another dictionary of other text"))} {
		x.dictionary = d
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: it is read as %.50q", name, x.bytes(nil))
				}
			}()
			x.bytes(nil)
		}()
	}
}

// A dictionary goes with the last text that is compressed against it, and is replaced when few are left.
func TestDictionaries_GoWithTheirTexts(t *testing.T) {
	t.Parallel()
	f := start(t, Options{CheckInterval: never})
	names, texts := podTexts(100, 2)
	for i := range names {
		f.write(pod("ns", names[i]), texts[i])
	}
	f.snapshot()
	inUse := func() map[*dictionary]int {
		f.compress(t.Context())
		f.compress(t.Context())
		var held []*text
		for e := range f.snapshot().All("", nil) {
			held = append(held, e.value.Load())
		}
		return dictionaries(held)
	}
	before := inUse()
	if len(before) != 2 || before[nil] > 0 {
		t.Fatalf("100 Pods of two owners have dictionaries of %v", before)
	}
	freed := make(chan struct{})
	for d := range before {
		if strings.Contains(string(d.data), "service-00001") {
			runtime.AddCleanup(d, func(struct{}) { close(freed) }, struct{}{})
		}
	}
	for _, name := range names[51:] {
		f.remove(pod("ns", name))
	}
	f.Publish(f.changesAfter(f.Revision()))
	after := inUse()
	clear(before)
	if len(after) != 1 || after[nil] > 0 {
		t.Errorf("51 Pods have dictionaries of %v", after)
	}
	f.state.caches[pods].ring.reset(f.Revision(), false)
	f.state.caches[pods].cloned = nil
	for {
		runtime.GC()
		select {
		case <-freed:
			return
		case <-t.Context().Done():
			t.Fatal("the dictionary is not freed")
		default:
		}
	}
}

// Representations are compressed too, keep their marks, and count by what they take.
func TestRepresentations_AreCompressed(t *testing.T) {
	t.Parallel()
	f := start(t, Options{CheckInterval: never})
	names, texts := podTexts(100, 1)
	for i := range names {
		f.write(pod("ns", names[i]), texts[i])
	}
	own, shared := &Format{}, &Format{}
	read := func() {
		t.Helper()
		for e := range f.snapshot().All("", nil) {
			for _, format := range []*Format{own, shared} {
				r, err := f.Representations().Scan(t.Context(), &e.Representations, format,
					func(context.Context) (Representation, error) {
						r := Representation{Body: bytes.ToUpper(e.Value()), Marks: [4]int32{1, 2, 3, 4}}
						if format == shared {
							r.Body = e.Value()
							e.Share(&r)
						}
						return r, nil
					})
				want := e.Value()
				if format == own {
					want = bytes.ToUpper(want)
				}
				if err != nil || !bytes.Equal(r.Body, want) || r.Marks != [4]int32{1, 2, 3, 4} {
					t.Fatalf("%.100q, %v", r.Body, err)
				}
			}
		}
	}
	read()
	before := f.Representations().Bytes()
	f.compress(t.Context())
	if now := f.Representations().Bytes(); now > before/5 || now < 100*overhead {
		t.Errorf("they take %d bytes, and took %d", now, before)
	}
	misses := f.representations.misses.Load()
	read()
	if n := f.representations.misses.Load(); n != misses {
		t.Errorf("%d are made again", n-misses)
	}
	for e := range f.snapshot().All("", nil) {
		if r := e.Representations.find(shared).value.Load(); r.Body != nil || r.text != e.value.Load() {
			t.Fatal("what is shared is held twice")
		}
	}
}

// BenchmarkText compares Pods that are held as they are, compressed by S2 alone, and against dictionaries.
func BenchmarkText(b *testing.B) {
	_, texts := podTexts(20_000, 400)
	forms := map[string]func() []*text{
		"plain": func() (held []*text) {
			for _, data := range texts {
				held = append(held, newText([]byte(data)))
			}
			return held
		},
		"s2": func() (held []*text) {
			for _, data := range texts {
				u := &uncompressed{data: []byte(data), store: func(t *text) { held = append(held, t) }}
				u.held = s2.Encode(nil, u.data)
				(&compression{used: map[*dictionary]int{}}).store(u)
			}
			return held
		},
		"dictionaries": func() []*text { return compressed(texts) },
	}
	for _, name := range []string{"plain", "s2", "dictionaries"} {
		held := forms[name]()
		b.Run("encode/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				held = forms[name]()
			}
			bytes := 0
			for _, x := range held {
				bytes += len(x.held)
			}
			for d := range dictionaries(held) {
				if d != nil {
					bytes += len(d.data)
				}
			}
			b.ReportMetric(float64(bytes)/float64(len(held)), "bytes/Pod")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(held)), "ns/Pod")
		})
		b.Run("decode/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				_ = held[i%len(held)].bytes(nil)
			}
		})
	}
}

// BenchmarkMemory measures what 20,000 Pods in a feed take, uncompressed and compressed.
func BenchmarkMemory(b *testing.B) {
	names, texts := podTexts(20_000, 400)
	heap := func() float64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return float64(stats.HeapAlloc) / (1 << 20)
	}
	for range b.N {
		before := heap()
		s, tree := newState(nil, Options{}, nil, nil, nil), btree.NewG(treeDegree, lessEntry)
		for i, name := range names {
			tree.ReplaceOrInsert(NewEntry(sqlstore.Record{Key: pod("ns", name), Value: []byte(texts[i])}))
		}
		s.caches[pods] = &resourceCache{tree: tree, loaded: true}
		b.ReportMetric(heap()-before, "MiB-plain")
		f := &Feed{state: s, representations: NewRepresentations(0)}
		f.compress(b.Context())
		b.ReportMetric(heap()-before, "MiB-compressed")
		b.ReportMetric(float64(s.caches[pods].saved.Load())/(1<<20), "MiB-saved")
		runtime.KeepAlive(tree)
	}
}
