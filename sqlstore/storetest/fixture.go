package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"byre/sqlstore"
)

// fixture is a driver under test, with methods that fail the test on an error.
type fixture struct {
	testing.TB
	sqlstore.Driver
}

func (f fixture) commit(batch ...sqlstore.Write) []sqlstore.Outcome {
	f.Helper()
	outcomes, err := f.Commit(f.Context(), batch)
	if err != nil {
		f.Fatalf("commit: %v", err)
	}
	if len(outcomes) != len(batch) {
		f.Fatalf("commit of %d writes has %d outcomes", len(batch), len(outcomes))
	}
	return outcomes
}

// revision commits one write, whose precondition must hold, and returns its revision.
func (f fixture) revision(w sqlstore.Write) int64 {
	f.Helper()
	o := f.commit(w)[0]
	if o.Err != nil {
		f.Fatalf("%s %v: %v", w.Op, w.Key, o.Err)
	}
	return o.Revision
}

func (f fixture) list(q sqlstore.Query) ([]sqlstore.Record, sqlstore.ListResult) {
	f.Helper()
	records, listed, err := collect(f.Context(), f.Driver, q)
	if err != nil {
		f.Fatalf("list %+v: %v", q, err)
	}
	return records, listed
}

func (f fixture) state() sqlstore.State {
	f.Helper()
	state, err := f.State(f.Context())
	if err != nil {
		f.Fatalf("state: %v", err)
	}
	return state
}

func (f fixture) changes(after int64) []sqlstore.Change {
	f.Helper()
	changes, err := f.Changes(f.Context(), sqlstore.ChangesQuery{After: after, Limit: 1_000_000})
	if err != nil {
		f.Fatalf("changes after %d: %v", after, err)
	}
	return changes
}

// compact deletes all changes up to a revision. It returns how many it has deleted.
func (f fixture) compact(upTo int64) (deleted int64) {
	f.Helper()
	return Compact(f, f.Driver, upTo)
}

// Compact deletes the changes of all resources up to a revision, and returns how many.
func Compact(t testing.TB, driver sqlstore.Driver, upTo int64) (deleted int64) {
	t.Helper()
	histories, err := driver.Histories(t.Context())
	if err != nil {
		t.Fatalf("histories: %v", err)
	}
	for _, h := range histories {
		for n := limitOfDeletion; n == limitOfDeletion; deleted += int64(n) {
			if n, _, err = driver.DeleteHistory(t.Context(), sqlstore.Deletion{Of: h.Resource, UpTo: upTo, Limit: limitOfDeletion}); err != nil {
				t.Fatalf("delete history: %v", err)
			}
		}
	}
	return deleted
}

// limitOfDeletion makes a compaction in tests take several deletions.
const limitOfDeletion = 7

func collect(ctx context.Context, d sqlstore.Driver, q sqlstore.Query) ([]sqlstore.Record, sqlstore.ListResult, error) {
	var records []sqlstore.Record
	listed, err := d.List(ctx, q, func(r sqlstore.Record) error {
		records = append(records, r)
		return nil
	})
	return records, listed, err
}

func key(namespace, name string) sqlstore.Key {
	return sqlstore.Key{Resource: "pods", Namespace: namespace, Name: name}
}

func create(k sqlstore.Key, value string) sqlstore.Write {
	return sqlstore.Write{
		Op: sqlstore.Create, Key: k, UID: "uid-" + k.Name, Encoding: "v1", Value: quoted(value),
		Author: sqlstore.Author{User: "alice", Verb: "create", AuditID: "a-1"},
	}
}

func update(k sqlstore.Key, replaces int64, value string) sqlstore.Write {
	return sqlstore.Write{
		Op: sqlstore.Update, Key: k, Replaces: replaces, UID: "uid-" + k.Name, Encoding: "v2", Value: quoted(value),
		Author: sqlstore.Author{User: "bob", RealUser: "eve", Verb: "patch", Subresource: "status", Manager: "kubectl"},
	}
}

func remove(k sqlstore.Key, replaces int64) sqlstore.Write {
	return sqlstore.Write{
		Op: sqlstore.Delete, Key: k, Replaces: replaces,
		Author: sqlstore.Author{User: "carol", Verb: "delete"},
	}
}

func quoted(value string) []byte { return fmt.Appendf(nil, "%q", value) }

// sameError reports whether two errors match the same errors of sqlstore.
func sameError(a, b error) bool {
	var x, y *sqlstore.ConflictError
	if errors.As(a, &x) && errors.As(b, &y) {
		return *x == *y
	}
	for _, sentinel := range []error{
		sqlstore.ErrExists, sqlstore.ErrNotFound, sqlstore.ErrConflict, sqlstore.ErrRequired, sqlstore.ErrInUse, sqlstore.ErrCompacted,
		sqlstore.ErrFuture, sqlstore.ErrInvalid, sqlstore.ErrUnavailable, sqlstore.ErrUnknown, sqlstore.ErrClosed,
	} {
		if errors.Is(a, sentinel) != errors.Is(b, sentinel) {
			return false
		}
	}
	return (a == nil) == (b == nil)
}

// anHour is longer than any test takes.
const anHour = time.Hour
