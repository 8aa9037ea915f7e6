package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"

	"byre/sqlstore"
	"byre/watch"
)

// entriesOf yields entries with the revisions 1 to n, and then err if it is not nil.
func entriesOf(n int, err error) iter.Seq2[*watch.Entry, error] {
	return func(yield func(*watch.Entry, error) bool) {
		for i := range n {
			if !yield(watch.NewEntry(sqlstore.Record{Revision: int64(i + 1)}), nil) {
				return
			}
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

// TestParallel_KeepsTheOrder: all items come once and in order, whatever is in memory, and
// an error of the list comes where it occurs.
func TestParallel_KeepsTheOrder(t *testing.T) {
	t.Parallel()
	errList := errors.New("the list failed")
	for _, sequential := range []bool{false, true} {
		for _, every := range []int64{1, 2, 100, 5000} { // which revisions are in memory
			for _, n := range []int{0, 1, aheadBatch, 10*aheadBatch + 7} {
				t.Run(fmt.Sprintf("%t, %d, %d", sequential, every, n), func(t *testing.T) {
					t.Parallel()
					p := parallel[int64]{
						find:       func(e *watch.Entry) (int64, bool) { return e.Revision, e.Revision%every == 0 },
						make:       func(e *watch.Entry) (int64, error) { return e.Revision, nil },
						sequential: sequential,
					}
					next := int64(1)
					for item := range p.all(entriesOf(n, errList)) {
						if item.entry == nil {
							if !errors.Is(item.err, errList) || next != int64(n)+1 {
								t.Errorf("at %d: %v", next, item.err)
							}
							next++
							continue
						}
						if item.err != nil || item.value != next {
							t.Fatalf("got %d, %v, want %d", item.value, item.err, next)
						}
						next++
					}
					if next != int64(n)+2 {
						t.Errorf("ends before %d", next)
					}
				})
			}
		}
	}
}

// TestParallel_EndsWithItsReader: no goroutine goes on when the reader has left, and the
// error of an entry is that entry's.
func TestParallel_EndsWithItsReader(t *testing.T) {
	t.Parallel()
	errEntry := errors.New("the entry is broken")
	var running atomic.Int64
	p := parallel[int64]{
		find: func(*watch.Entry) (int64, bool) { return 0, false },
		make: func(e *watch.Entry) (int64, error) {
			defer running.Add(-1)
			running.Add(1)
			if e.Revision == 70 {
				return 0, errEntry
			}
			return e.Revision, nil
		},
	}
	for item := range p.all(entriesOf(100*aheadBatch, nil)) {
		if item.err != nil {
			if item.entry.Revision != 70 || !errors.Is(item.err, errEntry) {
				t.Errorf("entry %d: %v", item.entry.Revision, item.err)
			}
			break
		}
	}
	if n := running.Load(); n != 0 {
		t.Errorf("%d goroutines go on", n)
	}
}

// TestParallel_BoundsBytesAhead: large entries are not made ahead by the number of entries
// alone, because what is made of them is in memory until it is read.
func TestParallel_BoundsBytesAhead(t *testing.T) {
	t.Parallel()
	const size = 512 << 10
	value := make([]byte, size)
	entries := func(yield func(*watch.Entry, error) bool) {
		for i := range 10 * aheadBatch {
			if !yield(watch.NewEntry(sqlstore.Record{Revision: int64(i + 1), Value: value}), nil) {
				return
			}
		}
	}
	var ahead, most atomic.Int64
	p := parallel[int64]{
		find: func(*watch.Entry) (int64, bool) { return 0, false },
		make: func(e *watch.Entry) (int64, error) {
			n := ahead.Add(size)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			return e.Revision, nil
		},
	}
	for item := range p.all(entries) {
		if item.err != nil {
			t.Fatal(item.err)
		}
		ahead.Add(-size)
	}
	// The batch that is read, those that are made, and the one that is being filled.
	if limit := int64(aheadBatches+2) * (aheadBytes + size); most.Load() > limit {
		t.Errorf("%d MB were made ahead, want at most %d", most.Load()>>20, limit>>20)
	}
}

// TestParallel_PanicReachesTheReader: a panic reaches the goroutine of the request, which
// has somebody to recover it.
func TestParallel_PanicReachesTheReader(t *testing.T) {
	t.Parallel()
	p := parallel[int64]{
		find: func(*watch.Entry) (int64, bool) { return 0, false },
		make: func(e *watch.Entry) (int64, error) {
			if e.Revision == 100 {
				panic("broken")
			}
			return e.Revision, nil
		},
	}
	last := int64(0)
	func() {
		defer func() {
			if r := recover(); r != "broken" {
				t.Errorf("recovered %v", r)
			}
		}()
		for item := range p.all(entriesOf(1000, nil)) {
			last = item.value
		}
	}()
	if last != 99 {
		t.Errorf("the last item before the panic is %d", last)
	}
}

// BenchmarkParallel makes something of 10,000 entries that takes some 6 µs each, as a
// message of a Pod does, on all processors and as the control one after the other. The first
// takes 1.03 times the processor time of the second (four runs: 0.96, 1.04, 1.05, 1.08).
func BenchmarkParallel(b *testing.B) {
	text, err := json.Marshal(make([]string, 50))
	if err != nil {
		b.Fatal(err)
	}
	for name, sequential := range map[string]bool{"all processors": false, "control": true} {
		b.Run(name, func(b *testing.B) {
			p := parallel[int]{
				find: func(*watch.Entry) (int, bool) { return 0, false },
				make: func(*watch.Entry) (int, error) {
					var all []string
					return 0, json.Unmarshal(text, &all)
				},
				sequential: sequential,
			}
			for b.Loop() {
				for item := range p.all(entriesOf(10_000, nil)) {
					if item.err != nil {
						b.Fatal(item.err)
					}
				}
			}
		})
	}
}
