package storage

import (
	"context"
	"fmt"
	"iter"
	"reflect"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"byre/apiserver/storage/encoding"
	"byre/watch"
)

// EncodedList is a list in a Format. Its items are read while they are iterated.
type EncodedList struct {
	// ResourceVersion, Continue and RemainingItemCount are the list's metadata. They
	// are known before the first item is read.
	ResourceVersion    string
	Continue           string
	RemainingItemCount *int64
	// Items yields each object once, in key order. It ends with the first error, which
	// may come in the middle.
	Items iter.Seq2[encoding.Encoded, error]

	s      *lister
	page   *page
	format *encoding.Format
}

// MessagesBytes returns how many bytes the items take as the elements of a list in a
// Format of protobuf. Each element consists of the tag of its field, which is one byte,
// its length and the message. The caller may iterate Items afterwards. MessagesBytes keeps
// items in memory that are read from the database, because they can be read only once, and
// items that a webhook may convert otherwise the next time.
func (l *EncodedList) MessagesBytes(ctx context.Context) (total int, err error) {
	add := func(n int) { total += 1 + protowire.SizeBytes(n) }
	if l.page.readsOnce || l.s.serializer.DecodedAge > 0 {
		items, err := l.readItems()
		for _, item := range items {
			add(len(item.Body()))
		}
		return total, err
	}
	for size := range l.s.sizes(ctx, l.format).all(l.page.items) {
		if size.err != nil {
			return 0, l.s.itemError(ctx, l.page, size.err, size.entry)
		}
		add(size.value)
	}
	return total, nil
}

// readItems reads all items and keeps them in memory for Items.
func (l *EncodedList) readItems() (items []encoding.Encoded, err error) {
	for item, err := range l.Items {
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	l.Items = func(yield func(encoding.Encoded, error) bool) {
		for _, item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
	return items, nil
}

// sizes finds the lengths of the items' messages.
func (s *lister) sizes(ctx context.Context, f *encoding.Format) parallel[int] {
	return parallel[int]{
		find: func(e *watch.Entry) (int, bool) {
			n := s.serializer.Size(e, f)
			return n, n > 0
		},
		make: func(e *watch.Entry) (int, error) {
			r, err := s.serializer.RepresentItem(ctx, e, f)
			if err != nil {
				return 0, err
			}
			return len(r.Body), nil
		},
		sequential: s.prepare != nil,
	}
}

// representations makes the representations of the items of a list in a Format.
func (s *lister) representations(ctx context.Context, f *encoding.Format) parallel[*watch.Representation] {
	return parallel[*watch.Representation]{
		find: func(e *watch.Entry) (*watch.Representation, bool) {
			r := s.serializer.InMemory(e, f)
			return r, r != nil
		},
		make: func(e *watch.Entry) (*watch.Representation, error) {
			return s.serializer.RepresentItem(ctx, e, f)
		},
		sequential: s.prepare != nil,
	}
}

// itemError is the error for an entry of a page; where e is nil, the page itself failed.
func (s *lister) itemError(ctx context.Context, p *page, err error, e *watch.Entry) error {
	if e != nil && s.records.isLostHistory(ctx, err, e) {
		return p.expired
	}
	return s.serializer.EntryError(err, e)
}

// ListEncoded is GetList in a Format. It returns errors of resourceVersion and
// continue. An item that can't be read ends Items with the error of GetList, which names all such items. Where
// encrypted values have to be read, or a webhook asked (Config.DecodeAhead), any item may fail: all are read first,
// and the caller can still answer with the error.
func (s *Store) ListEncoded(ctx context.Context, key string, opts storage.ListOptions, f *encoding.Format) (*EncodedList, error) {
	p, err := s.lister.page(ctx, key, opts, f)
	if err == nil {
		err = s.checkReplaced(ctx, p.revision) // before the first item is sent
	}
	if err != nil {
		return nil, err
	}
	list := &EncodedList{
		ResourceVersion:    strconv.FormatInt(p.revision, 10),
		Continue:           p.continueToken,
		RemainingItemCount: p.remaining,

		s: s.lister, page: p, format: f,
	}
	list.Items = func(yield func(encoding.Encoded, error) bool) {
		var corrupt corruptObjects
		for item := range s.lister.representations(ctx, f).all(p.items) {
			switch {
			case item.err != nil && (item.entry == nil || s.records.isLostHistory(ctx, item.err, item.entry)):
				yield(encoding.Encoded{}, s.lister.itemError(ctx, p, item.err, item.entry))
				return
			case item.err != nil:
				if !corrupt.add(item.err, s.records.pathOf(item.entry.Key)) {
					yield(encoding.Encoded{}, corrupt.err(s.cfg.GroupResource))
					return
				}
				continue
			case len(corrupt.causes) > 0:
				continue // the rest is read for its errors alone
			}
			if !yield(s.serializer.Encoded(f, item.value, item.entry, item.entry.Revision), nil) {
				return
			}
		}
		if err := corrupt.err(s.cfg.GroupResource); err != nil {
			yield(encoding.Encoded{}, err)
		}
	}
	if s.cfg.DecodeAhead != nil || p.isEncrypted {
		if _, err := list.readItems(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Encode returns an entry of the feed, of this resource, in a Format.
func (s *Store) Encode(ctx context.Context, e *watch.Entry, f *encoding.Format) (encoding.Encoded, error) {
	r, err := s.serializer.RepresentItem(ctx, e, f)
	if err != nil {
		return encoding.Encoded{}, s.serializer.EntryError(err, e)
	}
	return s.serializer.Encoded(f, r, e, e.Revision), nil
}

// Row is an object as it is stored, decrypted.
type Row struct {
	Namespace, Name string
	JSON            []byte
}

// ListRows lists objects without decoding them, also those that can't be decoded. It returns the
// continue token of the next page.
func (s *Store) ListRows(ctx context.Context, opts storage.ListOptions) (rows []Row, next string, err error) {
	p, err := s.lister.page(ctx, s.Prefix(), opts, nil)
	if err != nil {
		return nil, "", err
	}
	for entry, err := range p.items {
		if err != nil {
			return nil, "", s.serializer.EntryError(err, entry)
		}
		data, _, err := s.serializer.Open(ctx, entry)
		if err != nil {
			return nil, "", s.serializer.EntryError(err, entry)
		}
		rows = append(rows, Row{entry.Namespace, entry.Name, data})
	}
	return rows, p.continueToken, nil
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
	p, err := s.lister.page(ctx, key, opts, nil)
	if err != nil {
		return err
	}
	var corrupt corruptObjects
	for e, err := range p.items {
		var obj runtime.Object
		if err == nil {
			obj, err = s.serializer.Object(ctx, e)
		}
		switch {
		case err != nil && (e == nil || s.records.isLostHistory(ctx, err, e)):
			return s.lister.itemError(ctx, p, err, e)
		case err != nil:
			if !corrupt.add(err, s.records.pathOf(e.Key)) {
				return corrupt.err(s.cfg.GroupResource)
			}
		default:
			items.Set(reflect.Append(items, reflect.ValueOf(obj).Elem()))
		}
	}
	if err := corrupt.err(s.cfg.GroupResource); err != nil {
		return err
	}
	if items.IsNil() {
		// Clients expect an empty list as items: [], not null.
		items.Set(reflect.MakeSlice(items.Type(), 0, 0))
	}
	if err := versioner.UpdateList(listObj, uint64(p.revision), p.continueToken, p.remaining); err != nil {
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
		if err := s.records.ensureFirstRevision(ctx); err != nil {
			return 0, err
		}
		revision, err = s.cfg.Feed.Latest(ctx)
	}
	if err != nil {
		return 0, s.records.apiError(err, s.records.prefix)
	}
	return uint64(revision), nil
}
