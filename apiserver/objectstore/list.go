package objectstore

import (
	"context"
	"fmt"
	"iter"
	"reflect"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
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
}

// ListEncoded is GetList without decoding. The list's metadata is known, and
// errors about resourceVersion and continue are returned, before the first
// item.
func (s *Store) ListEncoded(ctx context.Context, key string, opts storage.ListOptions) (*EncodedList, error) {
	p, err := s.page(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	list := &EncodedList{
		ResourceVersion:    strconv.FormatInt(p.revision, 10),
		Continue:           p.cont,
		RemainingItemCount: p.remaining,
	}
	list.Items = func(yield func(Encoded, error) bool) {
		for e, err := range p.items {
			var d *document
			if err == nil {
				d, err = s.document(ctx, e)
			}
			if err != nil {
				if e != nil {
					err = readError(err, s.pathOf(e.Key))
				}
				yield(Encoded{}, err)
				return
			}
			if !yield(Encoded{d, e.Revision}, nil) {
				return
			}
		}
	}
	return list, nil
}

// GetList implements storage.Interface. The items may share memory with those
// of other lists.
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
			obj, err = s.sharedObject(ctx, e)
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
	if err := s.versioner.UpdateList(listObj, uint64(p.revision), p.cont, p.remaining); err != nil {
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
