package objectstore

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

// open decrypts a record.
func (s *Store) open(ctx context.Context, r *sqlstore.Record) (data []byte, stale bool, err error) {
	data, stale, err = s.sealer.open(ctx, r.Value, s.pathOf(r.Key))
	if err != nil {
		return nil, false, &corruptError{sealed: true, revision: r.Revision, err: err}
	}
	return data, stale || r.Form != s.cfg.Form, nil
}

// decodeInto decodes data, as of a revision, into an empty object.
func (s *Store) decodeInto(data []byte, into runtime.Object, revision int64) error {
	if _, err := conversion.EnforcePtr(into); err != nil {
		return err
	}
	if _, _, err := s.cfg.Codec.Decode(data, nil, into); err != nil {
		return &corruptError{revision: revision, err: err}
	}
	return s.versioner.UpdateObject(into, uint64(revision))
}

// object returns an entry's object, which is the caller's alone.
func (s *Store) object(ctx context.Context, e *watch.Entry) (runtime.Object, error) {
	obj := s.cfg.NewFunc()
	return obj, s.readInto(ctx, e, obj)
}

// readInto decodes an entry into an object that is the caller's alone.
func (s *Store) readInto(ctx context.Context, e *watch.Entry, into runtime.Object) error {
	if r := s.cfg.Feed.Representations().Get(&e.Representations, &s.stored.form); r != nil {
		return s.decodeInto(r.Body, into, e.Revision)
	}
	data, _, err := s.open(ctx, &e.Record)
	if err != nil {
		return err
	}
	return s.decodeInto(data, into, e.Revision)
}

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

// attributes returns what selectors look at. The entry is decoded only when its writer
// was another process or an earlier one, and nobody has asked before.
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

// knownAttributes returns attributes that were found in this Store's View; nil if none
// were. Their Fields are nil where only the labels are known.
func (s *Store) knownAttributes(e *watch.Entry) *sqlstore.Attributes {
	if a := e.Attributes(); a != nil && a.View == s.cfg.View {
		return a
	}
	return nil
}

// labels returns an entry's labels. They are read from its bytes where those are what a
// decode and an encode would give.
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

// matches reports whether a predicate selects an entry. An object whose
// attributes can't be told is not selected, as upstream has it; one that can't
// be read is an error.
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
	if everything(p) {
		return true, nil
	}
	if p.Field == nil || p.Field.Empty() {
		labels, err := s.labels(ctx, e)
		return err == nil && p.Label.Matches(labels), err
	}
	a, err := s.attributes(ctx, e)
	return err == nil && matchAttributes(p, a), err
}

// everything is SelectionPredicate.Empty for predicates with nil selectors too.
func everything(p *storage.SelectionPredicate) bool {
	return (p.Label == nil || p.Label.Empty()) && (p.Field == nil || p.Field.Empty())
}
