package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"byre/apiserver/storage/encoding"
	"byre/sqlstore"
	"byre/watch"
)

// Request is what a write tells the store about the request behind it, and what the store has stored for that
// request. The package apiserver/handlers/write makes one for each request. Upstream's registry stands between that
// package and the Store, and storage.Interface has no parameter for it; a Request therefore travels in the context.
// Create, GuaranteedUpdate and Delete take it out of the context and pass it on as a parameter.
//
// Invariant: a Request does not change after WithRequest, apart from what is stored. A Request is safe for concurrent
// use: upstream deletes the objects of a collection in several goroutines.
//
// The zero value stands for a change of the server's own, which no request asked for.
type Request struct {
	// Author is recorded with each change. An empty User is the server; an empty Verb is the operation of the change.
	Author sqlstore.Author
	// Grows is true if the quota of the database applies: the store refuses new and larger objects at the quota. It
	// is false for the server's own changes, which are few and without which a start does not end, and for deletes:
	// an update of a delete, such as that of the deletionTimestamp, leads to a smaller database.
	Grows bool
	// MayOmitManagedFields is true if the store writes an object without its managed fields where it is too large
	// with them.
	MayOmitManagedFields bool

	stored atomic.Pointer[storedBytes]
}

// storedBytes are the bytes that were stored at a revision.
type storedBytes struct {
	data     []byte // decrypted
	revision int64
}

type requestKey struct{}

// WithRequest returns a context whose changes are those of r.
func WithRequest(ctx context.Context, r *Request) context.Context {
	return context.WithValue(ctx, requestKey{}, r)
}

// requestFrom returns the Request of a write. It is the only reader of the context's value.
func requestFrom(ctx context.Context) *Request {
	if r, ok := ctx.Value(requestKey{}).(*Request); ok {
		return r
	}
	return &Request{}
}

// programName is the author of changes that no request asked for.
const programName = "byre"

// author returns the author of one change of the request.
func (r *Request) author(op sqlstore.Op) sqlstore.Author {
	a := r.Author
	if a.User == "" {
		a.User = programName
	}
	if a.Verb == "" {
		a.Verb = string(op)
	}
	return a
}

// What upstream does: it encodes an object to store it, decodes the result, and encodes that once
// more to answer the client. What is done instead: where the client asks for JSON in the storage
// version, the handler answers with the stored bytes (answerStored in apiserver/handlers/read.go). What it
// relies on: the registry changes nothing in what the storage returns, which answersWrites there
// checks; TestEncodedWrite_AnswersTheStoredBytes in handlers fails when an object is encoded again.
//
// What it earns: 3 to 11 percent of the processor time of the handler of a small Pod's create
// (BenchmarkCreate in handlers).

// Stored returns the bytes that were stored for the object that a write has returned: those of its
// resourceVersion. It returns false if the last change of the request has another, as when nothing
// changed. The caller guarantees that the object was not changed since.
func (r *Request) Stored(object runtime.Object) (encoding.Encoded, bool) {
	last := r.stored.Load()
	if last == nil {
		return encoding.Encoded{}, false
	}
	accessor, err := meta.Accessor(object)
	if err != nil || accessor.GetResourceVersion() != strconv.FormatInt(last.revision, 10) {
		return encoding.Encoded{}, false
	}
	return encoding.EncodedStored(last.data, last.revision), true
}

// Create implements storage.Interface.
func (s *Store) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	at, err := s.records.locate(key)
	if err != nil {
		return err
	}
	if version, err := versioner.ObjectResourceVersion(obj); err == nil && version != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}
	if err := versioner.PrepareObjectForStorage(obj); err != nil {
		return fmt.Errorf("PrepareObjectForStorage failed: %w", err)
	}
	w, from := writer{s: s, at: at, request: requestFrom(ctx)}, &state{}
	data, err := w.encode(obj, from)
	if err != nil {
		return err
	}
	revision, err := w.put(ctx, obj, data, from, ttl)
	if isConflict(err) {
		err = s.records.apiError(err, at.path)
	}
	if err != nil || out == nil {
		return err
	}
	return s.serializer.SetOutput(out, obj, data, revision)
}

// GuaranteedUpdate implements storage.Interface. It begins with the object in memory,
// which may be an old one. If the update fails with an old object, it is tried again
// with the object in the database, as upstream does after a suggested object.
func (s *Store) GuaranteedUpdate(
	ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, cachedExistingObject runtime.Object,
) error {
	at, err := s.records.locate(key)
	if err != nil {
		return err
	}
	w, err := s.newWriter(at, destination, requestFrom(ctx))
	if err != nil {
		return err
	}
	w.ignoreNotFound = ignoreNotFound
	from, err := w.getInitialState(ctx, cachedExistingObject)
	if err != nil {
		return err
	}
	for {
		obj, ttl, err := w.attempt(from, preconditions, tryUpdate)
		if err != nil {
			if from, err = w.getStateAfterFailure(ctx, from, err); err != nil {
				return err
			}
			continue
		}
		data, err := w.encode(obj, from)
		if err != nil {
			if from, err = w.getStateAfterFailure(ctx, from, err); err != nil {
				return err
			}
			continue
		}
		if from.unchanged(data) {
			if !from.current {
				// The object that was compared may not be the stored one, so read the
				// stored one.
				if from, err = w.getCurrentState(ctx); err != nil {
					return err
				}
				if !from.unchanged(data) {
					continue
				}
			}
			if err := s.checkUnwritten(ctx); err != nil {
				return err
			}
			return s.serializer.SetOutput(destination, obj, data, from.revision)
		}
		revision, err := w.put(ctx, obj, data, from, ttl)
		if isConflict(err) {
			if from, err = w.getCurrentState(ctx); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		return s.serializer.SetOutput(destination, obj, data, revision)
	}
}

// checkUnwritten is checkReplaced for a write that changes nothing: the database checks its requirement for no write.
func (s *Store) checkUnwritten(ctx context.Context) error {
	if s.cfg.IsReplaced == nil {
		return nil
	}
	latest, err := s.cfg.Feed.Latest(ctx)
	if err != nil {
		return s.records.apiError(err, s.records.prefix)
	}
	return s.checkReplaced(ctx, latest)
}

// Delete implements storage.Interface.
func (s *Store) Delete(
	ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validateDeletion storage.ValidateObjectFunc, cachedExistingObject runtime.Object, opts storage.DeleteOptions,
) error {
	at, err := s.records.locate(key)
	if err != nil {
		return err
	}
	w, err := s.newWriter(at, out, requestFrom(ctx))
	if err != nil {
		return err
	}
	w.mustBeUnreadable = opts.ExpectTransformOrDecodeError
	from, err := w.getInitialState(ctx, cachedExistingObject)
	if err != nil {
		return err
	}
	for {
		err := preconditions.Check(at.path, from.obj)
		if err == nil {
			err = validateDeletion(ctx, from.obj)
		}
		if err != nil {
			if from, err = w.getStateAfterFailure(ctx, from, err); err != nil {
				return err
			}
			continue
		}
		change, err := s.records.write(ctx, sqlstore.Write{
			Op:           sqlstore.Delete,
			Key:          at.Key,
			Replaces:     from.revision,
			RequiresNone: s.cfg.Contents(at.Name),
			Author:       w.request.author(sqlstore.Delete),
		})
		if isConflict(err) {
			if from, err = w.getCurrentState(ctx); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return s.records.apiError(err, at.path)
		}
		if w.mustBeUnreadable {
			return nil
		}
		return w.setDeletedOutput(out, from, cachedExistingObject, change.Revision)
	}
}

// DeleteRow deletes an object without decoding it, if it is as ListRows has returned it.
func (s *Store) DeleteRow(ctx context.Context, row Row) error {
	at := s.records.at(row.Namespace, row.Name)
	_, err := s.records.write(ctx, sqlstore.Write{
		Op: sqlstore.Delete, Key: at.Key, Replaces: row.Revision,
		RequiresNone: s.cfg.Contents(at.Name), Author: requestFrom(ctx).author(sqlstore.Delete),
	})
	return s.records.apiError(err, at.path)
}

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

// writer writes one object for one request. The state of the object may be read several times.
type writer struct {
	s              *Store
	at             location
	request        *Request
	empty          func() runtime.Object
	ignoreNotFound bool
	// mustBeUnreadable is set for the deletion of an object whose value can't be read: one that can is refused, and also
	// one that only can't be converted, which can be read again when the webhook answers. (Upstream deletes that one.)
	mustBeUnreadable bool
}

func (s *Store) newWriter(at location, like runtime.Object, request *Request) (*writer, error) {
	v, err := conversion.EnforcePtr(like)
	if err != nil {
		return nil, fmt.Errorf("unable to convert output object to pointer: %w", err)
	}
	w := &writer{s: s, at: at, request: request}
	if u, ok := like.(runtime.Unstructured); ok {
		w.empty = func() runtime.Object { return u.NewEmptyInstance() }
	} else {
		t := v.Type()
		w.empty = func() runtime.Object { return reflect.New(t).Interface().(runtime.Object) }
	}
	return w, nil
}

// getInitialState returns the state that a write begins with: the one that the caller
// suggests, otherwise the one in memory, otherwise the one in the database. Only the
// last is certain to be current.
func (w *writer) getInitialState(ctx context.Context, suggested runtime.Object) (*state, error) {
	if w.mustBeUnreadable {
		return w.getCurrentState(ctx)
	}
	if suggested != nil {
		return w.suggestedState(suggested)
	}
	if e, _, loaded := w.s.records.feed.Lookup(w.at.Key); loaded && e != nil {
		if st, err := w.decodeState(ctx, e); err == nil {
			return st, nil
		}
	}
	return w.getCurrentState(ctx)
}

// getCurrentState reads the object from the database.
func (w *writer) getCurrentState(ctx context.Context) (*state, error) {
	record, _, err := w.s.records.get(ctx, w.at.Key)
	if errors.Is(err, sqlstore.ErrNotFound) {
		if !w.ignoreNotFound {
			return nil, w.s.records.apiError(err, w.at.path)
		}
		st := &state{obj: w.empty(), current: true}
		return st, runtime.SetZeroValue(st.obj)
	}
	if err != nil {
		return nil, w.s.records.apiError(err, w.at.path)
	}
	st, err := w.decodeState(ctx, watch.NewEntry(record))
	if err != nil {
		return nil, keyError(err, w.at.path)
	}
	st.current = true
	return st, nil
}

func (w *writer) decodeState(ctx context.Context, e *watch.Entry) (*state, error) {
	data, stale, err := w.s.serializer.Open(ctx, e)
	st := &state{obj: w.empty(), data: data, revision: e.Revision, stale: stale}
	if err == nil {
		err = w.s.serializer.DecodeInto(data, st.obj, e.Revision)
	}
	if !w.mustBeUnreadable {
		return st, err
	}
	if err == nil {
		return nil,
			storage.NewInvalidObjError(w.at.path, "unsafe deletion is not allowed because the object is decodable from storage")
	}
	if unconverted := (*encoding.ConversionError)(nil); errors.As(err, &unconverted) {
		return nil, storage.NewInvalidObjError(w.at.path,
			"unsafe deletion is not allowed because the object is not corrupt: "+err.Error())
	}
	return &state{revision: e.Revision, stale: true}, nil
}

// suggestedState makes a state of an object that the caller has read before.
func (w *writer) suggestedState(obj runtime.Object) (*state, error) {
	revision, err := versioner.ObjectResourceVersion(obj)
	if err != nil {
		return nil, fmt.Errorf("couldn't get resource version: %w", err)
	}
	if err := versioner.PrepareObjectForStorage(obj); err != nil {
		return nil, fmt.Errorf("PrepareObjectForStorage failed: %w", err)
	}
	st := &state{obj: obj, revision: int64(revision)}
	if st.data, err = w.s.serializer.Encode(obj); err != nil {
		return nil, err
	}
	return st, versioner.UpdateObject(obj, revision)
}

// attempt calls tryUpdate with the object, after its preconditions were checked. It
// returns the new object and its time to live in seconds; 0 means unlimited.
func (w *writer) attempt(
	from *state, preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc,
) (runtime.Object, uint64, error) {
	if err := preconditions.Check(w.at.path, from.obj); err != nil {
		return nil, 0, err
	}
	obj, ttl, err := tryUpdate(from.obj, storage.ResponseMeta{ResourceVersion: uint64(from.revision)})
	if err != nil {
		return nil, 0, err
	}
	if err := versioner.PrepareObjectForStorage(obj); err != nil {
		return nil, 0, fmt.Errorf("PrepareObjectForStorage failed: %w", err)
	}
	if ttl == nil {
		return obj, 0, nil
	}
	return obj, *ttl, nil
}

// getStateAfterFailure returns the current state if a write failed with a state that
// was not current, so that the caller can try again. Otherwise it returns the failure.
func (w *writer) getStateAfterFailure(ctx context.Context, failed *state, failure error) (*state, error) {
	if failed.current {
		return nil, failure
	}
	st, err := w.getCurrentState(ctx)
	if err != nil {
		return nil, err
	}
	if st.revision == failed.revision {
		return nil, failure
	}
	return st, nil
}

// maxObject bounds the JSON of an object in bytes, so that a client can send back what it has read, in a body of 3 MiB
// (handlers.maxRequestBodyBytes): patches and applies would let an object grow without limit. The rest is for the
// fields of a deletion, without which an object of that size could not be deleted.
const maxObject, maxDeletion = 3<<20 - 64<<10, 48 << 10

// encode encodes an object that is to be written in place of the state from. Where the request allows it, encode takes
// managed fields out of an object that is too large with them, as upstream does. It fails with tooLargeObject, except
// for an object that was as large before.
func (w *writer) encode(obj runtime.Object, from *state) ([]byte, error) {
	data, err := w.s.serializer.Encode(obj)
	if err != nil || len(data) <= max(maxObject, len(from.data)) {
		return data, err
	}
	object, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	if object.GetDeletionTimestamp() != nil && len(data) <= maxObject+maxDeletion {
		return data, nil
	}
	if w.request.MayOmitManagedFields && len(object.GetManagedFields()) > 0 {
		object.SetManagedFields(nil)
		return w.encode(obj, from)
	}
	return nil,
		&apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
			Message: tooLargeObject}}
}

// put writes an object in place of the state from, and returns the revision of the write. data is the
// object's encoding. ttl is in seconds; 0 means that the object does not expire. If isConflict is
// true for the error, from is not the stored state. Other errors are those of the API.
func (w *writer) put(ctx context.Context, obj runtime.Object, data []byte, from *state, ttl uint64) (int64, error) {
	cfg := &w.s.cfg
	value, err := w.s.serializer.Transformer.Encrypt(ctx, data, w.at.path)
	if err != nil {
		return 0, storage.NewInternalError(err)
	}
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return 0, err
	}
	write := sqlstore.Write{
		Op:         sqlstore.Update,
		Key:        w.at.Key,
		Replaces:   from.revision,
		UID:        string(accessor.GetUID()),
		Generation: cfg.Generation(accessor),
		Encoding:   cfg.Encoding,
		Value:      value,
		Grows:      w.grows(len(data), from),
	}
	if from.revision == 0 {
		write.Op = sqlstore.Create
	}
	// An object whose attributes cannot be found is stored all the same. Where encoding may change the object, those
	// of the stored one count, which its readers find.
	if a, err := w.s.selector.attributesOfObject(obj); err == nil && !w.s.serializer.Lossy {
		write.Attributes = a
	}
	write.Author = w.request.author(write.Op)
	write.Requires = cfg.Requires(write.Op)
	if ttl > 0 {
		// The store compares expiries with the database's clock.
		write.Expires = cfg.Clock.Now().Add(cfg.Feed.ClockAhead() + time.Duration(ttl)*time.Second)
	}
	change, err := w.s.records.write(ctx, write)
	switch {
	case err == nil:
		w.request.stored.Store(&storedBytes{data, change.Revision})
	case errors.Is(err, sqlstore.ErrKeyTooLong):
		err = w.s.records.keyTooLong(w.at.Key)
	case !isConflict(err):
		err = w.s.records.apiError(err, w.at.path)
	}
	return change.Revision, err
}

// leases may be updated by any value while the database is at its quota. Without renewals
// nodes would become NotReady, and the controllers that delete objects would stop.
var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// grows reports whether a write makes the database larger, as far as the quota is concerned. Nodes and servers may
// create their Leases at the quota too: a node, or a server, that is started then would otherwise count as gone.
func (w *writer) grows(size int, from *state) bool {
	isLease := w.s.cfg.GroupResource == leases
	switch {
	case !w.request.Grows:
		return false
	case from.revision == 0:
		isNodes := w.at.Namespace == metav1.NamespaceSystem || w.at.Namespace == corev1.NamespaceNodeLease
		return !(isLease && isNodes)
	default:
		return size > len(from.data) && !isLease
	}
}

// setDeletedOutput sets out to the object that was deleted, at the revision of the
// delete.
func (w *writer) setDeletedOutput(out runtime.Object, from *state, suggested runtime.Object, revision int64) error {
	if from.obj == suggested || reflect.TypeOf(out) != reflect.TypeOf(from.obj) {
		return w.s.serializer.DecodeInto(from.data, out, revision)
	}
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(from.obj).Elem())
	return versioner.UpdateObject(out, uint64(revision))
}

// unchanged reports whether the object is stored with data as its encoding, and need
// not be written again.
func (st *state) unchanged(data []byte) bool {
	return !st.stale && st.revision > 0 && bytes.Equal(data, st.data)
}

// isConflict reports whether a write failed because the object is not the one that it
// replaces.
func isConflict(err error) bool {
	return errors.Is(err, sqlstore.ErrConflict) || errors.Is(err, sqlstore.ErrNotFound) ||
		errors.Is(err, sqlstore.ErrExists)
}
