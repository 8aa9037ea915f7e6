package storage

import (
	"context"
	"iter"
	goruntime "runtime"

	"k8s.io/apiserver/pkg/storage"

	"byre/apiserver/storage/encoding"
	"byre/watch"
)

// The representations of a list's entries are made on all processors, and read in the
// order of the list.
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
// 3 percent more processor time (BenchmarkParallel; BenchmarkFirstList in apiserver/handlers
// is the whole list).

const (
	// aheadBatch is how many entries one goroutine makes. A batch ends earlier when its
	// values have aheadBytes, because what is made of them stays in memory until it is
	// read.
	aheadBatch = 64
	// aheadBatches bounds the batches that are made and not yet read.
	aheadBatches = 8
)

// made is what was made of one entry of a list, or an error. An error without an entry
// is an error of the whole list.
type made[T any] struct {
	entry *watch.Entry
	value T
	err   error
}

// parallel makes a value of each entry of a list. find returns the value if it is in
// memory; only the reader's goroutine calls it. Several goroutines call make
// concurrently.
type parallel[T any] struct {
	find func(*watch.Entry) (T, bool)
	make func(*watch.Entry) (T, error)
	// sequential makes one value after the other, in the goroutine of the reader.
	sequential bool
}

// batch holds entries whose values one goroutine makes. The reader reads it after done
// is closed.
type batch[T any] struct {
	items []made[T]
	// bytes is the size of the values of the items.
	bytes int
	// complete is how many of the items have been made. After a panic it is less than
	// all.
	complete int
	done     chan struct{}
}

// add adds an entry whose value is to be made.
func (b *batch[T]) add(e *watch.Entry, err error) {
	b.items = append(b.items, made[T]{entry: e, err: err})
	if e != nil {
		b.bytes += e.Size()
	}
}

// makeOne makes the value of one entry.
func (p parallel[T]) makeOne(e *watch.Entry, err error) made[T] {
	item := made[T]{entry: e, err: err}
	if err == nil {
		item.value, item.err = p.make(e)
	}
	return item
}

// makeInline returns what needs no goroutine: an error, a value that is in memory, and any
// value where sequential is set. Otherwise it returns false.
func (p parallel[T]) makeInline(e *watch.Entry, err error) (made[T], bool) {
	if err != nil || p.sequential {
		return p.makeOne(e, err), true
	}
	value, ok := p.find(e)
	return made[T]{entry: e, value: value}, ok
}

// all yields the value of each entry, in the order of the entries.
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
					item = p.makeOne(item.entry, item.err) // panics again, in the reader's goroutine
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
				if item, ok := p.makeInline(e, err); ok {
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

// fill makes the values of a batch.
func (p parallel[T]) fill(b *batch[T]) {
	defer close(b.done)
	defer func() { _ = recover() }() // the reader makes the item again, and gets the panic
	for ; b.complete < len(b.items); b.complete++ {
		b.items[b.complete] = p.makeOne(b.items[b.complete].entry, b.items[b.complete].err)
	}
}

const (
	// aheadRecords and aheadBytes bound the records, and the bytes of their values,
	// that are decoded or encoded ahead together.
	aheadRecords = 500
	aheadBytes   = 1 << 20
)

// decodeAhead passes the values of entries that are about to be decoded, to be compared with
// a predicate and shown in a Format, to Config.DecodeAhead. f is nil for a reader of objects.
// It skips an entry that can't be decrypted: the reader of that entry gets the error.
func (s *selector) decodeAhead(
	ctx context.Context, p *storage.SelectionPredicate, f *encoding.Format, entries []*watch.Entry,
) {
	if s.prepare == nil {
		return
	}
	var values [][]byte
	var buffer []byte
	size := 0
	for _, e := range entries {
		isSelected := selectsEverything(p) || s.knownAttributes(e) != nil
		if f != nil && isSelected && s.serializer.InMemory(e, f, &buffer) != nil {
			continue // it is not decoded
		}
		if data, _, err := s.serializer.Open(ctx, e); err == nil {
			values = append(values, data)
			size += len(data)
		}
		if len(values) == aheadRecords || size >= aheadBytes {
			s.prepare(ctx, values)
			values, size = nil, 0
		}
	}
	if len(values) > 0 && ctx.Err() == nil {
		s.prepare(ctx, values)
	}
}

// withDecodeAhead yields the same entries. Before it yields the first entry of a page, it decodes
// the page ahead.
func (s *selector) withDecodeAhead(
	ctx context.Context, l *listRequest, entries iter.Seq[*watch.Entry],
) iter.Seq[*watch.Entry] {
	if s.prepare == nil {
		return entries
	}
	return func(yield func(*watch.Entry) bool) {
		var page []*watch.Entry
		size := 0
		yieldPage := func() bool {
			s.decodeAhead(ctx, &l.opts.Predicate, l.format, page)
			for _, e := range page {
				if !yield(e) {
					return false
				}
			}
			page, size = page[:0], 0
			return true
		}
		for e := range entries {
			page, size = append(page, e), size+e.Size()
			if (len(page) == aheadRecords || size >= aheadBytes) && !yieldPage() {
				return
			}
		}
		yieldPage()
	}
}

// decodePageAhead decodes the entries of a page with a limit ahead.
func (s *selector) decodePageAhead(ctx context.Context, l *listRequest, picked []selected) {
	if s.prepare == nil {
		return
	}
	entries := make([]*watch.Entry, 0, len(picked))
	for _, p := range picked {
		if p.err == nil {
			entries = append(entries, p.entry)
		}
	}
	s.decodeAhead(ctx, &l.opts.Predicate, l.format, entries)
}
