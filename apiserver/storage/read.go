package storage

import (
	"context"

	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
	"byre/watch"
)

func (s *Store) pathOf(key sqlstore.Key) string {
	return s.cfg.KeyPrefix + s.prefix + joinName(key.Namespace, key.Name)
}

// open decrypts a record's value. stale reports whether the value should be written
// again, because it would now be encrypted or encoded otherwise.
func (s *Store) open(ctx context.Context, r *sqlstore.Record) (data []byte, stale bool, err error) {
	data, stale, err = s.sealer.open(ctx, r.Value, s.pathOf(r.Key))
	if err != nil {
		return nil, false, &corruptError{sealed: true, revision: r.Revision, err: err}
	}
	return data, stale || r.Form != s.cfg.Form, nil
}

// decodeInto decodes data into an empty object and sets the object's resourceVersion to
// revision.
func (s *Store) decodeInto(data []byte, into runtime.Object, revision int64) error {
	if _, err := conversion.EnforcePtr(into); err != nil {
		return err
	}
	if _, _, err := s.cfg.Codec.Decode(data, nil, into); err != nil {
		return &corruptError{revision: revision, err: err}
	}
	return s.versioner.UpdateObject(into, uint64(revision))
}

// object decodes an entry. The caller owns the object.
func (s *Store) object(ctx context.Context, e *watch.Entry) (runtime.Object, error) {
	obj := s.cfg.NewFunc()
	return obj, s.readInto(ctx, e, obj)
}

// readInto decodes an entry into an object that the caller owns.
func (s *Store) readInto(ctx context.Context, e *watch.Entry, into runtime.Object) error {
	if !s.mayChange(e) {
		if r := s.cfg.Feed.Representations().Get(&e.Representations, &s.stored.form); r != nil {
			return s.decodeInto(r.Body, into, e.Revision)
		}
	}
	data, _, err := s.open(ctx, &e.Record)
	if err != nil {
		return err
	}
	return s.decodeInto(data, into, e.Revision)
}

// reencode decodes data and encodes it in the current form.
func (s *Store) reencode(data []byte, revision int64) ([]byte, error) {
	obj := s.cfg.NewFunc()
	if err := s.decodeInto(data, obj, revision); err != nil {
		return nil, err
	}
	if err := s.versioner.PrepareObjectForStorage(obj); err != nil {
		return nil, err
	}
	return s.encodeBy(s.cfg.Plain, obj)
}

// attributes returns the labels and fields that selectors compare. It decodes the entry
// only where this process did not write it, and keeps the result with the entry.
func (s *Store) attributes(ctx context.Context, e *watch.Entry) (*sqlstore.Attributes, error) {
	if a := s.knownAttributes(e); a != nil && a.Fields != nil {
		return a, nil
	}
	obj, err := s.object(ctx, e)
	if err != nil {
		return nil, err
	}
	a, err := s.attributesOfObject(obj)
	if err != nil {
		return nil, err
	}
	e.SetAttributes(a)
	return a, nil
}

// knownAttributes returns the attributes that were found in this Store's View, or nil.
// Their Fields are nil where only the labels have been read.
func (s *Store) knownAttributes(e *watch.Entry) *sqlstore.Attributes {
	if a := e.Attributes(); a != nil && a.View == s.cfg.View {
		return a
	}
	return nil
}

// labels returns an entry's labels. It reads them from the entry's bytes where these
// equal what a decode and an encode would give.
func (s *Store) labels(ctx context.Context, e *watch.Entry) (labelSet, error) {
	if a := s.knownAttributes(e); a != nil {
		return labelSet(a.Labels), nil
	}
	if s.sealer.plain && e.Form == s.cfg.Form {
		if stored, err := s.represent(ctx, e, &s.stored); err == nil {
			if found, ok := scanLabels(stored); ok {
				e.SetAttributes(newAttributes(s.cfg.View, found))
				return found, nil
			}
		}
	}
	a, err := s.attributes(ctx, e)
	if err != nil {
		return nil, err
	}
	return labelSet(a.Labels), nil
}

func (s *Store) attributesOfObject(obj runtime.Object) (*sqlstore.Attributes, error) {
	labels, fields, err := s.cfg.AttrFunc(obj)
	if err != nil {
		return nil, err
	}
	return s.fields.compact(s.cfg.View, labels, fields), nil
}

// matches reports whether a predicate selects an entry. It returns an error for an
// entry that cannot be read.
func (s *Store) matches(ctx context.Context, p *storage.SelectionPredicate, e *watch.Entry) (bool, error) {
	if p.ShardSelector != nil && !p.ShardSelector.Empty() {
		obj, err := s.object(ctx, e)
		if err != nil {
			return false, err
		}
		if ok, err := p.MatchesSharding(obj); err != nil || !ok {
			return false, err
		}
	}
	if selectsEverything(p) {
		return true, nil
	}
	if p.Field == nil || p.Field.Empty() {
		labels, err := s.labels(ctx, e)
		return err == nil && p.Label.Matches(labels), err
	}
	a, err := s.attributes(ctx, e)
	return err == nil && matchAttributes(p, a), err
}

// selectsEverything is SelectionPredicate.Empty, which would panic for nil selectors.
func selectsEverything(p *storage.SelectionPredicate) bool {
	return (p.Label == nil || p.Label.Empty()) && (p.Field == nil || p.Field.Empty())
}
