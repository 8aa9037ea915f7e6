package objectstore

import (
	"context"
	"fmt"
	"iter"
	"math/bits"
	"reflect"
	goruntime "runtime"
	"strconv"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"byre/watch"
	"byre/watch/representation"
)

// EncodedList is a list whose items are read while they are iterated.
type EncodedList struct {
	// ResourceVersion, Continue and RemainingItemCount are the list's
	// metadata. They are complete before the first item is read.
	ResourceVersion    string
	Continue           string
	RemainingItemCount *int64
	// Items gives each object once, in key order. After an error, which may
	// come in the middle, nothing more comes.
	Items iter.Seq2[Encoded, error]

	s      *Store
	page   *page
	format *Format
}

// MessagesBytes returns how many bytes the items take as the elements of a list in a
// Format of protobuf: each with the tag of its field, which is one byte, and its length.
// It comes before the first item is read. The items that are read from the database are
// in memory from then on, encoded.
func (l *EncodedList) MessagesBytes(ctx context.Context) (total int, err error) {
	add := func(n int) { total += 1 + sizeOfVarint(n) + n }
	if l.page.readsOnce {
		items := []Encoded{}
		for item, err := range l.Items {
			if err != nil {
				return 0, err
			}
			add(len(item.Message()))
			items = append(items, item)
		}
		l.Items = func(yield func(Encoded, error) bool) {
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
		}
		return total, nil
	}
	if err := l.makeMissing(ctx); err != nil {
		return 0, err
	}
	for e, err := range l.page.items {
		n := 0
		if err == nil {
			n, err = l.s.size(ctx, e, l.format)
		}
		if err != nil {
			return 0, l.s.entryError(err, e)
		}
		add(n)
	}
	return total, nil
}

// makersBatch is how many messages one goroutine of makeMissing makes at a time.
const makersBatch = 64

// makeMissing makes the missing messages, on all processors. After a start, or after a
// change of every object, this is most of the time of a list. Messages that fail are left
// to the caller.
func (l *EncodedList) makeMissing(ctx context.Context) error {
	var makers errgroup.Group
	makers.SetLimit(goruntime.GOMAXPROCS(0))
	missing := make([]*watch.Entry, 0, makersBatch)
	start := func() {
		batch := missing
		missing = make([]*watch.Entry, 0, makersBatch)
		makers.Go(func() error {
			// The caller makes the message again, and gets the panic itself.
			defer func() { _ = recover() }()
			for _, e := range batch {
				if _, err := l.s.size(ctx, e, l.format); err != nil {
					return ctx.Err() // nil, unless nobody waits any more
				}
			}
			return nil
		})
	}
	for e, err := range l.page.items {
		if err != nil {
			break // the caller comes to it again
		}
		if e.Representations.Size(&l.format.form) > 0 {
			continue
		}
		if missing = append(missing, e); len(missing) == makersBatch {
			start()
		}
	}
	if len(missing) > 0 && len(missing) < makersBatch {
		start()
	}
	return makers.Wait()
}

// size is the length of an entry's message, which need not be in memory.
func (s *Store) size(ctx context.Context, e *watch.Entry, f *Format) (int, error) {
	if n := e.Representations.Size(&f.form); n > 0 {
		return n, nil
	}
	r, err := s.representItem(ctx, e, f)
	if err != nil {
		return 0, err
	}
	return len(r.Body), nil
}

// entryError is the error for an entry of a list; it is nil where the list itself failed.
func (s *Store) entryError(err error, e *watch.Entry) error {
	if e == nil {
		return err
	}
	return readError(err, s.pathOf(e.Key))
}

func sizeOfVarint(n int) int { return (bits.Len64(uint64(n)|1) + 6) / 7 }

// ListEncoded is GetList in a Format. The list's metadata is known, and
// errors about resourceVersion and continue are returned, before the first
// item.
func (s *Store) ListEncoded(ctx context.Context, key string, opts storage.ListOptions, f *Format) (*EncodedList, error) {
	p, err := s.page(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	list := &EncodedList{
		ResourceVersion:    strconv.FormatInt(p.revision, 10),
		Continue:           p.continueToken,
		RemainingItemCount: p.remaining,

		s: s, page: p, format: f,
	}
	list.Items = func(yield func(Encoded, error) bool) {
		for e, err := range p.items {
			var r *representation.Representation
			if err == nil {
				r, err = s.representItem(ctx, e, f)
			}
			if err != nil {
				yield(Encoded{}, s.entryError(err, e))
				return
			}
			if !yield(s.newEncoded(f, r, e, e.Revision), nil) {
				return
			}
		}
	}
	return list, nil
}

// GetList implements storage.Interface.
func (s *Store) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	itemsPtr, err := meta.GetItemsPtr(listObj)
	if err != nil {
		return err
	}
	items, err := conversion.EnforcePtr(itemsPtr)
	if err != nil || items.Kind() != reflect.Slice {
		return fmt.Errorf("need ptr to slice: %w", err)
	}
	p, err := s.page(ctx, key, opts)
	if err != nil {
		return err
	}
	var corrupt corruptObjects
	for e, err := range p.items {
		var obj runtime.Object
		if err == nil {
			obj, err = s.object(ctx, e)
		}
		switch {
		case err != nil && e == nil:
			return err
		case err != nil:
			if !corrupt.add(err, s.pathOf(e.Key)) {
				return corrupt.err(s)
			}
		default:
			items.Set(reflect.Append(items, reflect.ValueOf(obj).Elem()))
		}
	}
	if err := corrupt.err(s); err != nil {
		return err
	}
	if items.IsNil() {
		// Never a nil slice: an empty list has items too.
		items.Set(reflect.MakeSlice(items.Type(), 0, 0))
	}
	if err := s.versioner.UpdateList(listObj, uint64(p.revision), p.continueToken, p.remaining); err != nil {
		return err
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch) {
		opts.Predicate.SetShardInfoOnList(listObj)
	}
	return nil
}

// GetCurrentResourceVersion implements storage.Interface.
func (s *Store) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	revision, err := s.cfg.Feed.Latest(ctx)
	if err == nil && revision == 0 {
		if err := s.ensureFirstRevision(ctx); err != nil {
			return 0, err
		}
		revision, err = s.cfg.Feed.Latest(ctx)
	}
	if err != nil {
		return 0, s.apiError(err, s.prefix)
	}
	return uint64(revision), nil
}
