package migrations_test

import (
	"slices"
	"testing"

	"byre/migrations"
)

// The migration up from the first release, and down again, keeps the last revision, also if changes
// are committed or compacted in between.
func TestRevision_OutlivesUpAndDown(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, d database, _ string) {
		d.at(t, 1)
		d.exec(t, stored)
		expect := func(when, revision string) {
			t.Helper()
			if got := d.query(t, `SELECT revision || ' ' || compacted || ' ' || program FROM counters`); !slices.Equal(got, []string{revision}) {
				t.Errorf("%s: %q, want %q", when, got, revision)
			}
		}
		if _, err := migrations.Up(t.Context(), d.endpoint); err != nil {
			t.Fatal(err)
		}
		expect("up", "7 0 byre")
		if len(d.query(t, `SELECT revision FROM history`)) != 7 {
			t.Error("history has lost rows")
		}
		// This is how a process of the first release writes.
		d.exec(t, `INSERT INTO changes (revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name, uid, replaces, created_revision)
VALUES (8, '2026-01-01T00:00:00.000000Z', 'create', '', '', '', '', 'pods', 'builtin', 'n', 'b', '', 0, 8)`)
		d.exec(t, `UPDATE counters SET revision = 8`)
		expect("after a change", "8 0 byre")
		d.exec(t, `DELETE FROM changes WHERE revision <= 8; UPDATE counters SET compacted = 8`)
		expect("after a compaction of all", "8 8 byre")
		d.at(t, 2)
		expect("down", "8 8 byre")
		d.exec(t, `UPDATE counters SET revision = 9`)
		if _, err := migrations.Up(t.Context(), d.endpoint); err != nil {
			t.Fatal(err)
		}
		expect("up again", "9 8 byre")
	})
}
