package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
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

func (f fixture) state() sqlstore.State {
	f.Helper()
	state, err := f.State(f.Context())
	if err != nil {
		f.Fatalf("state: %v", err)
	}
	return state
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
			if n, _, err = driver.DeleteHistory(t.Context(),
				sqlstore.Deletion{Of: h.Resource, UpTo: upTo, Limit: limitOfDeletion}); err != nil {
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

// rounds is the number of rounds of a random walk.
const rounds = 150

// walk makes the same random calls of two drivers.
type walk struct {
	driver fixture
	model  fixture
	random *rand.Rand
}

func (w *walk) key() sqlstore.Key {
	return sqlstore.Key{
		Group:     []string{"", "apps"}[w.random.IntN(2)],
		Resource:  []string{"pods", "pods2"}[w.random.IntN(2)],
		Owner:     sqlstore.Owner(w.random.IntN(2)),
		Namespace: []string{"", "n", "n-1", "n.1"}[w.random.IntN(4)],
		Name:      []string{"a", "b", "B", "ä", "a-", "a.", "%"}[w.random.IntN(7)],
	}
}

// writeOf returns a random write of a key. Its precondition holds in four of five cases.
func (w *walk) writeOf(k sqlstore.Key) sqlstore.Write {
	var at int64
	if r, _, err := w.model.Get(w.driver.Context(), k); err == nil {
		at = r.Revision
	}
	if w.random.IntN(5) == 0 {
		at = w.random.Int64N(w.model.state().Revision + 2)
	}
	value := fmt.Sprint(w.random.Int64())
	var c sqlstore.Write
	switch {
	case at == 0:
		c = create(k, value)
	case w.random.IntN(3) == 0:
		return remove(k, at)
	default:
		c = update(k, at, value)
	}
	c.Generation = w.random.Int64N(3)
	if w.random.IntN(2) == 0 {
		c.Expires = time.Unix(w.random.Int64N(4_000_000_000), 123_456_000).UTC()
	}
	return c
}

// HistoryQuery selects the rows of the view history, each as one text.
const HistoryQuery = `
SELECT revision || ' ' || op || ' ' || resource || '/' || name || ' ' || coalesce(value, '-') || ' ' || coalesce(replaced, '-')
FROM history ORDER BY revision`

// Growth returns the number of objects that "make growth" asks for; ok is false in other runs.
func Growth() (objects int, ok bool) {
	objects, err := strconv.Atoi(os.Getenv("BYRE_GROWTH"))
	return objects, err == nil
}

// AtScale returns statements that insert 100000 rows, changed to insert as many as "make growth"
// asks for.
func AtScale(statements string) string {
	if objects, ok := Growth(); ok {
		return strings.ReplaceAll(statements, "100000", strconv.Itoa(objects))
	}
	return statements
}
