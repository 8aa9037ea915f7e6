package objectstore

import (
	"context"
	"sync/atomic"
	"weak"

	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
	"byre/watch"
)

// memo is what was derived from an entry, once, by Stores of one View.
type memo struct {
	view  *string
	attrs atomic.Pointer[attrs]
	// doc is the entry's own Value, where that is what a decode and an encode
	// would give.
	doc atomic.Pointer[document]
	// derived is what was made of a Value that is encrypted or of another Form.
	// It is shared while the garbage collector leaves it, so that no record is
	// kept in two encodings.
	derived atomic.Pointer[weak.Pointer[document]]
	// shared is a decoded object that readers share while the garbage
	// collector leaves it: it needs no budget.
	shared atomic.Pointer[weak.Pointer[decoded]]
}

type decoded struct{ obj runtime.Object }

// document returns what keep has stored, or nil.
func (m *memo) document() *document {
	if d := m.doc.Load(); d != nil {
		return d
	}
	if p := m.derived.Load(); p != nil {
		return p.Value()
	}
	return nil
}

// keep keeps the document of a record with a Value.
func (m *memo) keep(d *document, value []byte) {
	if &d.body[0] == &value[0] {
		m.doc.Store(d)
		return
	}
	p := weak.Make(d)
	m.derived.Store(&p)
}

func (s *Store) newMemo() *memo { return &memo{view: s.view} }

func (s *Store) memoOf(e *watch.Entry) *memo {
	if m, ok := e.Memo().(*memo); ok && *m.view == s.cfg.View {
		return m
	}
	m := s.newMemo()
	e.SetMemo(m)
	return m
}

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

// sharedObject returns an entry's object for reading only.
func (s *Store) sharedObject(ctx context.Context, e *watch.Entry) (runtime.Object, error) {
	m := s.memoOf(e)
	if p := m.shared.Load(); p != nil {
		if d := p.Value(); d != nil {
			return d.obj, nil
		}
	}
	obj := s.cfg.NewFunc()
	if err := s.readInto(ctx, e, obj); err != nil {
		return nil, err
	}
	p := weak.Make(&decoded{obj})
	m.shared.Store(&p)
	return obj, nil
}

// readInto decodes an entry into an object that is the caller's alone.
func (s *Store) readInto(ctx context.Context, e *watch.Entry, into runtime.Object) error {
	if d := s.memoOf(e).document(); d != nil {
		return s.decodeInto(d.body, into, e.Revision)
	}
	data, _, err := s.open(ctx, &e.Record)
	if err != nil {
		return err
	}
	return s.decodeInto(data, into, e.Revision)
}

// document returns an entry's JSON in the storage version, as a decode and an
// encode would give it.
func (s *Store) document(ctx context.Context, e *watch.Entry) (*document, error) {
	m := s.memoOf(e)
	if d := m.document(); d != nil {
		return d, nil
	}
	data, _, err := s.open(ctx, &e.Record)
	if err != nil {
		return nil, err
	}
	if e.Form != s.cfg.Form {
		if data, err = s.reencode(data, e.Revision); err != nil {
			return nil, err
		}
	}
	d := newDocument(data)
	m.keep(&d, e.Value)
	return &d, nil
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

// attrsOf returns what selectors look at, decoding the entry only when its
// writer was another process or an earlier one.
func (s *Store) attrsOf(ctx context.Context, e *watch.Entry) (*attrs, error) {
	m := s.memoOf(e)
	if a := m.attrs.Load(); a != nil {
		return a, nil
	}
	obj, err := s.sharedObject(ctx, e)
	if err != nil {
		return nil, err
	}
	a, err := s.attrsOfObject(obj)
	if err != nil {
		return nil, err
	}
	m.attrs.Store(a)
	return a, nil
}

func (s *Store) attrsOfObject(obj runtime.Object) (*attrs, error) {
	labels, fields, err := s.cfg.AttrFunc(obj)
	if err != nil {
		return nil, err
	}
	return s.fields.compact(labels, fields), nil
}

// matches says whether a predicate selects an entry. An object whose
// attributes can't be told is not selected, as upstream has it; one that can't
// be read is an error.
func (s *Store) matches(ctx context.Context, p *storage.SelectionPredicate, e *watch.Entry) (bool, error) {
	if p.ShardSelector != nil && !p.ShardSelector.Empty() {
		obj, err := s.sharedObject(ctx, e)
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
	a, err := s.attrsOf(ctx, e)
	if err != nil {
		return false, err
	}
	return a.match(p), nil
}

// everything is SelectionPredicate.Empty for predicates with nil selectors too.
func everything(p *storage.SelectionPredicate) bool {
	return (p.Label == nil || p.Label.Empty()) && (p.Field == nil || p.Field.Empty())
}
