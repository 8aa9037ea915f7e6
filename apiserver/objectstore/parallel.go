package objectstore

import (
	"iter"
	goruntime "runtime"

	"byre/watch"
)

// What a list shows of its entries is made on all processors and read in the order of the
// list.
//
// What upstream does: it converts and encodes the objects of a list one after the other,
// in the goroutine of the request.
//
// What is done instead: from the first entry whose representation is not in memory,
// goroutines make batches of entries while the reader writes out the batches before. What
// is in memory is read without a goroutine.
//
// What it relies on: a representation is made of one entry, and of nothing that the entries
// before it have left. A Store with Config.DecodeAhead is read without goroutines.
// TestParallel_KeepsTheOrder runs under the race detector.
//
// What it earns: after a start, or after a change of every object, making representations
// is most of the time of a list; that time is divided by the number of idle processors, for
// 3 percent more processor time (BenchmarkParallel; BenchmarkFirstList in apiserver/endpoints
// is the whole list).

const (
	// aheadBatch is how many entries a goroutine makes at a time. A batch whose values have
	// aheadBytes has fewer: what is made of it is in memory until it is read.
	aheadBatch = 64
	// aheadBatches bounds the batches that are made and not yet read.
	aheadBatches = 8
)

// made is what was made of one entry of a list, or the error. An error without an entry
// is the list's.
type made[T any] struct {
	entry *watch.Entry
	value T
	err   error
}

// parallel makes something of entries. find returns what is in memory; the reader calls it.
// Several goroutines call make.
type parallel[T any] struct {
	find func(*watch.Entry) (T, bool)
	make func(*watch.Entry) (T, error)
	// sequential makes one entry after the other, in the goroutine of the reader.
	sequential bool
}

// batch are entries that one goroutine makes. The reader reads it when done is closed.
type batch[T any] struct {
	items []made[T]
	// bytes is the size of the values of the items.
	bytes int
	// complete is how many of the items are made. It is less than all after a panic.
	complete int
	done     chan struct{}
}

// add adds an entry that is to be made.
func (b *batch[T]) add(e *watch.Entry, err error) {
	b.items = append(b.items, made[T]{entry: e, err: err})
	if e != nil {
		b.bytes += len(e.Value)
	}
}

// one makes one entry.
func (p parallel[T]) one(e *watch.Entry, err error) made[T] {
	item := made[T]{entry: e, err: err}
	if err == nil {
		item.value, item.err = p.make(e)
	}
	return item
}

// atOnce returns what needs no goroutine: an error, what is in memory, and everything
// where sequential is set.
func (p parallel[T]) atOnce(e *watch.Entry, err error) (made[T], bool) {
	if err != nil || p.sequential {
		return p.one(e, err), true
	}
	value, ok := p.find(e)
	return made[T]{entry: e, value: value}, ok
}

// all yields what is made of each entry, in the order of the entries.
func (p parallel[T]) all(entries iter.Seq2[*watch.Entry, error]) iter.Seq[made[T]] {
	return func(yield func(made[T]) bool) {
		var started []*batch[T]
		defer func() {
			for _, b := range started {
				<-b.done
			}
		}()
		// read yields the batch that was started first.
		read := func() bool {
			b := started[0]
			<-b.done
			started = started[1:]
			for i, item := range b.items {
				if i >= b.complete {
					item = p.one(item.entry, item.err) // the reader gets the panic
				}
				if !yield(item) {
					return false
				}
			}
			return true
		}
		limit := min(goruntime.GOMAXPROCS(0), aheadBatches)
		var next *batch[T]
		for e, err := range entries {
			if next == nil && len(started) == 0 {
				if item, ok := p.atOnce(e, err); ok {
					if !yield(item) {
						return
					}
					continue
				}
			}
			if next == nil {
				next = &batch[T]{items: make([]made[T], 0, aheadBatch), done: make(chan struct{})}
			}
			if next.add(e, err); len(next.items) < aheadBatch && next.bytes < aheadBytes {
				continue
			}
			go p.fill(next)
			started, next = append(started, next), nil
			if len(started) > limit && !read() {
				return
			}
		}
		if next != nil {
			go p.fill(next)
			started = append(started, next)
		}
		for len(started) > 0 {
			if !read() {
				return
			}
		}
	}
}

// fill makes the entries of a batch.
func (p parallel[T]) fill(b *batch[T]) {
	defer close(b.done)
	defer func() { _ = recover() }() // the reader makes the entry again
	for ; b.complete < len(b.items); b.complete++ {
		b.items[b.complete] = p.one(b.items[b.complete].entry, b.items[b.complete].err)
	}
}
