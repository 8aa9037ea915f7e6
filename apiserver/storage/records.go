package storage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/klog/v2"

	"byre/apiserver/storage/encoding"
	"byre/sqlstore"
	"byre/watch"
)

// records are the records of one resource, in the revision store and in the feed.
type records struct {
	keys
	store *sqlstore.Store
	feed  *watch.Feed
	// futureTimeout is Config.FutureTimeout.
	futureTimeout time.Duration
	// lostKeys has the prefixes of encrypted history that reportLost has logged.
	lostKeys sync.Map
}

// get, list and write are the requests to the revision store. Each
// is counted in kube-apiserver's metrics of requests to etcd, such as
// etcd_request_duration_seconds, because dashboards and alerts query these.

func (r *records) get(ctx context.Context, key sqlstore.Key) (sqlstore.Record, int64, error) {
	start := time.Now()
	record, revision, err := r.store.Get(ctx, key)
	r.count("get", start, err)
	return record, revision, err
}

func (r *records) list(ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error) (sqlstore.ListResult, error) {
	start := time.Now()
	listed, err := r.store.List(ctx, q, yield)
	r.count("list", start, err)
	return listed, err
}

func (r *records) write(ctx context.Context, w sqlstore.Write) (sqlstore.Change, error) {
	start := time.Now()
	change, err := r.store.Commit(ctx, w)
	r.count(string(w.Op), start, err)
	return change, err
}

// count counts a request, as an error where etcd would answer with one. etcd
// does not answer with an error for a missing key or a failed precondition.
func (r *records) count(operation string, start time.Time, err error) {
	for _, answer := range []error{sqlstore.ErrNotFound, sqlstore.ErrExists, sqlstore.ErrConflict, sqlstore.ErrRequired, sqlstore.ErrInUse} {
		if errors.Is(err, answer) {
			err = nil
		}
	}
	metrics.RecordEtcdRequest(operation, r.groupResource, err, start)
}

// entry reads one object that is at least as recent as resourceVersion demands. It
// returns nil if the object does not exist.
func (r *records) entry(ctx context.Context, at location, resourceVersion string) (*watch.Entry, error) {
	asked, err := parseVersion(resourceVersion)
	if err != nil {
		return nil, err
	}
	if !r.feed.IsLoaded(r.resource()) {
		return r.storedEntry(ctx, at, asked)
	}
	if resourceVersion == "" {
		if _, err := r.feed.Latest(ctx); err != nil {
			return nil, r.apiError(err, at.path)
		}
	} else if err := r.waitFor(ctx, asked); err != nil {
		return nil, err
	}
	e, _, loaded := r.feed.Lookup(at.Key)
	if !loaded { // the feed has dropped the resource in the meantime
		return r.storedEntry(ctx, at, asked)
	}
	return e, nil
}

// storedEntry reads one object from the database. It serves resources that the feed has
// not loaded.
func (r *records) storedEntry(ctx context.Context, at location, asked int64) (*watch.Entry, error) {
	if err := r.waitFor(ctx, asked); err != nil {
		return nil, err
	}
	record, _, err := r.get(ctx, at.Key)
	missing := errors.Is(err, sqlstore.ErrNotFound)
	if err != nil && !missing {
		return nil, r.apiError(err, at.path)
	}
	if missing {
		return nil, nil
	}
	return watch.NewEntry(record), nil
}

// parseVersion parses a resourceVersion. One that is too large for a revision is the largest revision, which never
// exists.
func parseVersion(resourceVersion string) (int64, error) {
	asked, err := versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	return int64(min(asked, math.MaxInt64)), nil
}

// waitFor waits, for at most Config.FutureTimeout, until the feed has applied a
// revision. The client may have learned the revision from another replica. If a new epoch begins
// meanwhile, the revision may be one of it, which that replica has seen first.
func (r *records) waitFor(ctx context.Context, revision int64) error {
	if revision <= 0 || r.feed.Revision() >= revision {
		return nil
	}
	short, cancel := context.WithTimeout(ctx, r.futureTimeout)
	defer cancel()
	err := r.feed.WaitFor(short, revision)
	for errors.Is(err, watch.ErrCompacted) {
		err = r.feed.WaitFor(short, revision)
	}
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return r.tooLarge(revision)
	}
	return r.apiError(err, "")
}

// checkHistory fails with ErrCompacted if changes of the resource after a revision may be
// deleted. They may still be in this process's memory. The database decides, so that every
// replica gives the same answer. state is that of the database, which is asked for the
// resource's compacted revision only if another resource's is later than the revision.
func (r *records) checkHistory(ctx context.Context, revision int64, state sqlstore.State) error {
	if revision >= state.Compacted {
		return nil
	}
	compacted, err := r.store.Compacted(ctx, r.at("", "").Key.Of())
	if err == nil && revision < compacted {
		err = sqlstore.ErrCompacted
	}
	return err
}

// currentState reads the state of the database. While the database is not available, it
// returns the feed's state, with a zero Time.
func (r *records) currentState(ctx context.Context) sqlstore.State {
	state, err := r.feed.State(ctx)
	if err != nil {
		return sqlstore.State{Revision: r.feed.Revision(), Compacted: r.feed.Compacted()}
	}
	return state
}

// ensureFirstRevision calls EnsureFirstRevision for a reader that comes before the
// server has called it.
func (r *records) ensureFirstRevision(ctx context.Context) error {
	return r.apiError(EnsureFirstRevision(ctx, r.store, r.feed), r.prefix)
}

// isLostHistory reports whether err says that an entry can't be decrypted, and the entry is not
// the current state of its object. After a key was removed, the current objects are encrypted
// with another key, and the history still with the removed one. A reader of that history gets
// 410, as if it were compacted, and reads the current objects. A current object that can't be
// decrypted is an error of the server, as upstream's is.
func (r *records) isLostHistory(ctx context.Context, err error, e *watch.Entry) bool {
	var corrupt *encoding.CorruptError
	if !errors.As(err, &corrupt) || !corrupt.IsEncrypted || encoding.IsOfAbsentPlugin(corrupt.Err) {
		return false
	}
	current, _, getErr := r.store.Get(ctx, e.Key)
	if getErr == nil && current.Revision == e.Revision || getErr != nil && !errors.Is(getErr, sqlstore.ErrNotFound) {
		return false
	}
	r.reportLost(err, e)
	return true
}

// reportLost logs the key with which history is encrypted, once for each key.
func (r *records) reportLost(err error, e *watch.Entry) {
	encrypted, _ := encoding.UnwrapEncrypted(e.Value())
	key := string(encoding.ReadablePrefix(encrypted))
	if _, known := r.lostKeys.LoadOrStore(key, nil); !known {
		klog.ErrorS(err, "History is encrypted with a key that is not in the encryption configuration, so that watches and lists that need it end with 410: "+
			"put the key back until the history is compacted, or ignore this", "resource", r.groupResource, "key", key, "revision", e.Revision)
	}
}
