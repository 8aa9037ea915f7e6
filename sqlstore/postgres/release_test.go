package postgres_test

import (
	"fmt"
	"testing"

	"byre/sqlstore/postgres"
)

// A process of the previous release may run at the same time as one of this release. Its
// statements see every revision of this release and take the next one.
func TestReleaseBefore_SeesEveryRevision(t *testing.T) {
	t.Parallel()
	driver, dsn := open(t, postgres.Options{})
	defer driver.Close()
	old := connect(t, dsn)
	for i := range 3 {
		if last := mustCreate(t, driver, fmt.Sprint("new", i)); last != int64(2*i+1) {
			t.Fatalf("new: revision %d", last)
		}
		tx, err := old.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var revision int64
		if _, err := tx.Exec(t.Context(), `SELECT revision FROM counters WHERE id = 1 FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		if err := tx.QueryRow(t.Context(), releasedBatch, fmt.Sprint("old", i)).Scan(&revision); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if state, err := driver.State(t.Context()); err != nil || revision != int64(2*i+2) || state.Revision != revision {
			t.Fatalf("old: revision %d, state %+v, %v", revision, state, err)
		}
	}
	// This is the previous release's compaction.
	if _, err := old.Exec(t.Context(), `DELETE FROM changes WHERE revision <= 6`); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Exec(t.Context(), `UPDATE counters SET compacted = greatest(compacted, 6) WHERE id = 1`); err != nil {
		t.Fatal(err)
	}
	if state, err := driver.State(t.Context()); err != nil || state.Revision != 6 || state.Compacted != 6 {
		t.Errorf("state after its compaction: %+v, %v", state, err)
	}
	if last := mustCreate(t, driver, "last"); last != 7 {
		t.Errorf("revision %d after its compaction", last)
	}
	// Both releases take the same lock.
	tx, err := old.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT revision FROM counters WHERE id = 1 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	var free int
	if err := connect(t, dsn).QueryRow(t.Context(),
		`SELECT count(*) FROM (SELECT FROM store FOR UPDATE SKIP LOCKED) free`).Scan(&free); err != nil || free != 0 {
		t.Errorf("while the release before holds the lock: %d free, %v", free, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// releasedBatch is a batch of the first release, with one create.
const releasedBatch = `
WITH asked AS MATERIALIZED (
    SELECT $1::text AS name, k.revision + 1 AS revision, statement_timestamp() AS time FROM counters k WHERE k.id = 1
), logged AS (
    INSERT INTO changes (revision, time, op, verb, who, audit_id, "group", resource, namespace, name, uid, replaces, created_revision)
    SELECT revision, time, 'create', '', '', '', '', 'pods', 'n', name, '', 0, revision FROM asked
), created AS (
    INSERT INTO objects (revision, "group", resource, namespace, name, uid, created_revision, time, verb, who, form, value)
    SELECT revision, '', 'pods', 'n', name, '', revision, time, '', '', '', '{}' FROM asked
), counted AS (
    UPDATE counters k SET revision = k.revision + e.n
    FROM (SELECT count(*) AS n FROM asked) e
    WHERE k.id = 1 AND e.n > 0
)
SELECT revision FROM asked`
