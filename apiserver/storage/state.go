package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
	"byre/watch"
)

// state is the state of an object that an update or a delete begins with.
type state struct {
	obj      runtime.Object
	data     []byte // its encoding
	revision int64  // 0: it does not exist
	// stale is true if the stored value should be written again even if nothing
	// changes.
	stale bool
	// current is true if the state was read from the database. A state that the caller
	// suggested or that was in memory may be older than the stored one.
	current bool
}

// stateReader reads the state of one object for a write, which may need it several
// times.
type stateReader struct {
	s              *Store
	at             location
	empty          func() runtime.Object
	ignoreNotFound bool
	// mustBeUnreadable is set for the deletion of an object whose value can't be read:
	// one that can is refused.
	mustBeUnreadable bool
}

func (s *Store) newStateReader(at location, like runtime.Object) (*stateReader, error) {
	v, err := conversion.EnforcePtr(like)
	if err != nil {
		return nil, fmt.Errorf("unable to convert output object to pointer: %w", err)
	}
	r := &stateReader{s: s, at: at}
	if u, ok := like.(runtime.Unstructured); ok {
		r.empty = func() runtime.Object { return u.NewEmptyInstance() }
	} else {
		t := v.Type()
		r.empty = func() runtime.Object { return reflect.New(t).Interface().(runtime.Object) }
	}
	return r, nil
}

// getInitialState returns the state that a write begins with: the one that the caller
// suggests, otherwise the one in memory, otherwise the one in the database. Only the
// last is certain to be current.
func (r *stateReader) getInitialState(ctx context.Context, suggested runtime.Object) (*state, error) {
	if r.mustBeUnreadable {
		return r.getCurrentState(ctx)
	}
	if suggested != nil {
		return r.s.suggestedState(suggested)
	}
	if e, _, loaded := r.s.cfg.Feed.Lookup(r.at.Key); loaded && e != nil {
		if st, err := r.decodeState(ctx, e); err == nil {
			return st, nil
		}
	}
	return r.getCurrentState(ctx)
}

// getCurrentState reads the object from the database.
func (r *stateReader) getCurrentState(ctx context.Context) (*state, error) {
	record, _, err := r.s.getRecord(ctx, r.at.Key)
	if errors.Is(err, sqlstore.ErrNotFound) {
		if !r.ignoreNotFound {
			return nil, r.s.apiError(err, r.at.path)
		}
		st := &state{obj: r.empty(), current: true}
		return st, runtime.SetZeroValue(st.obj)
	}
	if err != nil {
		return nil, r.s.apiError(err, r.at.path)
	}
	st, err := r.decodeState(ctx, watch.NewEntry(record))
	if err != nil {
		return nil, r.s.keyError(err, r.at.path)
	}
	st.current = true
	return st, nil
}

func (r *stateReader) decodeState(ctx context.Context, e *watch.Entry) (*state, error) {
	data, stale, err := r.s.open(ctx, &e.Record)
	st := &state{obj: r.empty(), data: data, revision: e.Revision, stale: stale}
	if err == nil {
		err = r.s.decodeInto(data, st.obj, e.Revision)
	}
	if !r.mustBeUnreadable {
		return st, err
	}
	if err == nil {
		return nil, storage.NewInvalidObjError(r.at.path, "unsafe deletion is not allowed because the object is decodable from storage")
	}
	return &state{revision: e.Revision, stale: true}, nil
}

// suggestedState makes a state of an object that the caller has read before.
func (s *Store) suggestedState(obj runtime.Object) (*state, error) {
	revision, err := s.versioner.ObjectResourceVersion(obj)
	if err != nil {
		return nil, fmt.Errorf("couldn't get resource version: %w", err)
	}
	if err := s.versioner.PrepareObjectForStorage(obj); err != nil {
		return nil, fmt.Errorf("PrepareObjectForStorage failed: %w", err)
	}
	st := &state{obj: obj, revision: int64(revision)}
	if st.data, err = s.encode(obj); err != nil {
		return nil, err
	}
	return st, s.versioner.UpdateObject(obj, revision)
}

func (st *state) meta() storage.ResponseMeta {
	return storage.ResponseMeta{ResourceVersion: uint64(st.revision)}
}

// unchanged reports whether the object is stored with data as its encoding, and need
// not be written again.
func (st *state) unchanged(data []byte) bool {
	return !st.stale && st.revision > 0 && bytes.Equal(data, st.data)
}

// isConflict reports whether a write failed because the object is not the one that it
// replaces.
func isConflict(err error) bool {
	return errors.Is(err, sqlstore.ErrConflict) || errors.Is(err, sqlstore.ErrNotFound) || errors.Is(err, sqlstore.ErrExists)
}
