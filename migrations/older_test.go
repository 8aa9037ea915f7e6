package migrations_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"byre/migrations"
	"byre/sqlstore/eventually"
)

// The statements with which the first release writes.
const (
	olderLock  = `SELECT revision FROM counters WHERE id = 1 FOR UPDATE`
	olderBatch = `
WITH asked AS MATERIALIZED (
    SELECT w.*, NULLIF(w.expiry, '')::timestamptz AS expires, statement_timestamp() AS time,
           o.revision AS current, o.created_revision AS created, o.uid AS old_uid, o.form AS old_form,
           o.expires AS old_expires, o.value AS old_value,
           coalesce(o.revision, 0) = w.replaces AS effective,
           k.revision + sum((coalesce(o.revision, 0) = w.replaces)::int) OVER (ORDER BY w.n)::bigint AS revision
    FROM counters k
    CROSS JOIN unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::text[],
                      $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[]) WITH ORDINALITY
         AS w(op, "group", resource, namespace, name, replaces, uid, form, expiry, value, who, verb, audit_id, n)
    LEFT JOIN objects o ON o."group" = w."group" AND o.resource = w.resource
         AND o.namespace = w.namespace AND o.name = w.name
    WHERE k.id = 1
), logged AS (
    INSERT INTO changes (revision, time, op, verb, who, audit_id, "group", resource, namespace, name,
                         uid, replaces, created_revision, form, expires, value)
    SELECT revision, time, op, verb, who, audit_id, "group", resource, namespace, name,
           coalesce(old_uid, uid), replaces, coalesce(created, revision), old_form, old_expires, old_value
    FROM asked WHERE effective
), created AS (
    INSERT INTO objects (revision, "group", resource, namespace, name, uid, created_revision,
                         time, verb, who, form, expires, value)
    SELECT revision, "group", resource, namespace, name, uid, revision, time, verb, who, form, expires, value
    FROM asked WHERE effective AND op = 'create'
), updated AS (
    UPDATE objects o SET revision = a.revision, uid = a.uid, time = a.time, verb = a.verb, who = a.who,
                         form = a.form, expires = a.expires, value = a.value
    FROM asked a
    WHERE a.effective AND a.op = 'update' AND o."group" = a."group" AND o.resource = a.resource
      AND o.namespace = a.namespace AND o.name = a.name
), deleted AS (
    DELETE FROM objects o USING asked a
    WHERE a.effective AND a.op = 'delete' AND o."group" = a."group" AND o.resource = a.resource
      AND o.namespace = a.namespace AND o.name = a.name
), counted AS (
    UPDATE counters k SET revision = k.revision + e.n
    FROM (SELECT count(*) AS n FROM asked WHERE effective) e
    WHERE k.id = 1 AND e.n > 0
)
SELECT max(revision) FROM asked WHERE effective`
	olderDeleteChanges   = `DELETE FROM changes WHERE revision <= $1`
	olderUpdateCompacted = `UPDATE counters SET compacted = greatest(compacted, $1) WHERE id = 1`
)

func session(t *testing.T, endpoint string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), endpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func olderBegin(t *testing.T, d database) pgx.Tx {
	t.Helper()
	tx, err := session(t, d.endpoint).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func olderExec(t *testing.T, tx pgx.Tx, statement string, arguments ...any) {
	t.Helper()
	if _, err := tx.Exec(t.Context(), statement, arguments...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// olderWrite writes as the first release does.
func olderWrite(t *testing.T, tx pgx.Tx, op, group, resource, name string, replaces int64) (revision int64) {
	t.Helper()
	one := func(s string) []string { return []string{s} }
	olderExec(t, tx, olderLock)
	if err := tx.QueryRow(t.Context(), olderBatch, one(op), one(group), one(resource), one(""), one(name), []int64{replaces},
		one("uid"), one("form"), one(""), one("{}"), one("who"), one("verb"), one("")).Scan(&revision); err != nil {
		t.Fatalf("%s %s: %v", op, resource, err)
	}
	return revision
}

// blocked returns the sessions that have waited for a lock for longer than an interval.
func (d database) blocked(t *testing.T, interval string) []string {
	t.Helper()
	return d.query(t, `SELECT pid::text FROM pg_stat_activity WHERE datname = current_database()
AND wait_event_type = 'Lock' AND clock_timestamp() > query_start + interval '`+interval+`'`)
}

// The migration up waits for a transaction of the first release to complete, even if the
// role's statement_timeout is shorter.
func TestOlderReplica_UpWaitsForItsWrite(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		begin, end func(*testing.T, pgx.Tx)
		// waits is how long the migration waits before the transaction ends.
		waits, revision string
	}{
		"batch": {
			begin: func(t *testing.T, tx pgx.Tx) { olderExec(t, tx, olderLock) },
			end: func(t *testing.T, tx pgx.Tx) {
				olderWrite(t, tx, "create", "", "pods", "b", 0)
				if err := tx.Commit(t.Context()); err != nil {
					t.Error(err)
				}
			},
			waits: "1500ms", revision: "8",
		},
		"compaction": {
			begin: func(t *testing.T, tx pgx.Tx) { olderExec(t, tx, olderDeleteChanges, 2) },
			end: func(t *testing.T, tx pgx.Tx) {
				// A deadlock may abort this statement; then the test repeats it.
				if _, err := tx.Exec(t.Context(), olderUpdateCompacted, 2); err != nil {
					_ = tx.Rollback(t.Context()) // the server has ended it already
				} else if err := tx.Commit(t.Context()); err != nil {
					t.Error(err)
				}
			},
			waits: "0", revision: "7",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := postgresDatabase(t)
			d.at(t, 1)
			d.exec(t, stored)
			tx := olderBegin(t, d)
			test.begin(t, tx)
			up := make(chan error, 1)
			go func() {
				_, err := migrations.Up(t.Context(), d.endpoint+"&statement_timeout=1000")
				up <- err
			}()
			eventually.True(t, "up waits", func() bool {
				select {
				case err := <-up:
					t.Fatalf("up ended during a transaction that writes: %v", err)
				default:
				}
				return len(d.blocked(t, test.waits)) > 0
			})
			test.end(t, tx)
			if err := <-up; err != nil {
				t.Fatal(err)
			}
			if got := d.query(t, `SELECT revision::text FROM counters`); !slices.Equal(got, []string{test.revision}) {
				t.Errorf("revision %q, want %s", got, test.revision)
			}
		})
	}
}

// Up fails if another session holds a table for long: while Up waits for that table, all other
// sessions wait for Up.
func TestMigrate_UpGivesUpDuringABackup(t *testing.T) {
	t.Parallel()
	d := postgresDatabase(t)
	d.at(t, 1)
	olderExec(t, olderBegin(t, d), `LOCK TABLE objects IN ACCESS SHARE MODE`) // as pg_dump does
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := migrations.Up(ctx, d.endpoint)
	if err == nil || !strings.Contains(err.Error(), "end the other session's transaction") {
		t.Errorf("up: %v", err)
	}
}

// A replica of the first release can work with the schema of this one: an object that it
// updates keeps its owner, in the log too, and it may compact all history.
func TestOlderReplica_WorksWithTheNewSchema(t *testing.T) {
	t.Parallel()
	d := postgresDatabase(t)
	d.at(t, 1)
	d.exec(t, stored)
	if _, err := migrations.Up(t.Context(), d.endpoint); err != nil {
		t.Fatal(err)
	}
	write := func(op, group, resource, name string, replaces int64) int64 {
		t.Helper()
		tx := olderBegin(t, d)
		revision := olderWrite(t, tx, op, group, resource, name, replaces)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		return revision
	}
	updated := write("update", "internal.apiserver.k8s.io", "storageversions", "a", 7)
	write("delete", "internal.apiserver.k8s.io", "storageversions", "a", updated)
	write("create", "", "pods", "b", 0)
	if got := d.query(t, `SELECT revision || ' ' || op || ' ' || resource || ' ' || owner FROM changes WHERE revision > 7 ORDER BY revision`); !slices.Equal(got, []string{
		"8 update storageversions custom", "9 delete storageversions custom", "10 create pods builtin",
	}) {
		t.Errorf("changes: %q", got)
	}
	// A write of this release does not move the counter.
	d.exec(t, `INSERT INTO changes (revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name, uid, replaces, created_revision)
VALUES (11, '2026-01-01T00:00:00.000000Z', 'create', '', '', '', '', 'pods', 'builtin', 'n', 'c', '', 0, 11)`)
	tx := olderBegin(t, d)
	olderExec(t, tx, olderDeleteChanges, 11)
	olderExec(t, tx, olderUpdateCompacted, 11)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := d.query(t, `SELECT revision || ' ' || compacted FROM store`); !slices.Equal(got, []string{"11 11"}) {
		t.Errorf("after a compaction of all: %q", got)
	}
}

// A compaction of the first release does not restore the epoch that it read before it
// waited for the row.
func TestOlderReplica_KeepsTheEpoch(t *testing.T) {
	t.Parallel()
	d := postgresDatabase(t)
	if _, err := migrations.Up(t.Context(), d.endpoint); err != nil {
		t.Fatal(err)
	}
	tx := olderBegin(t, d)
	olderExec(t, tx, `UPDATE store SET epoch = 'next', revision = 1000000, compacted = 1000000`)
	compacted := make(chan error, 1)
	older := session(t, d.endpoint)
	go func() {
		_, err := older.Exec(t.Context(), olderUpdateCompacted, 0)
		compacted <- err
	}()
	eventually.True(t, "the compaction waits", func() bool { return len(d.blocked(t, "0")) > 0 })
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-compacted; err != nil {
		t.Fatal(err)
	}
	if got := d.query(t, `SELECT epoch || ' ' || revision || ' ' || compacted FROM store`); !slices.Equal(got, []string{"next 1000000 1000000"}) {
		t.Errorf("after both: %q", got)
	}
}
