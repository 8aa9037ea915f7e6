package postgres_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/storetest"
)

// A resource whose changes are all missing has a history too: a snapshot has its objects, and a
// compaction ends the watches that would miss the changes.
func TestHistories_OfMissingChanges(t *testing.T) {
	t.Parallel()
	driver, dsn := open(t, postgres.Options{})
	defer driver.Close()
	missing := mustCreate(t, driver, "a", "b")
	other := create("c")
	other[0].Key.Resource = "configmaps"
	if _, err := driver.Commit(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if _, err := connect(t, dsn).Exec(t.Context(), `DELETE FROM undo_log WHERE revision <= $1`, missing); err != nil {
		t.Fatal(err)
	}
	if err := postgres.ReadSnapshot(t.Context(), dsn, func(s sqlstore.Snapshot) error {
		rows, err := storetest.Collect(s)
		if err == nil && len(rows.Objects) != 3 {
			t.Errorf("the snapshot has %d objects, want 3", len(rows.Objects))
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if _, err := sqlstore.New(driver, sqlstore.Options{}).CompactOlder(t.Context(),
		sqlstore.Compaction{UpTo: missing}); err != nil {
		t.Fatal(err)
	}
	pods := sqlstore.Resource{Resource: "pods"}
	if _, err := driver.Changes(t.Context(),
		sqlstore.ChangesQuery{After: missing - 1, Of: &pods, Limit: 10}); !errors.Is(err, sqlstore.ErrCompacted) {
		t.Errorf("changes after a revision before the missing ones: %v", err)
	}
}

// TestCompaction_SpaceIsUsedAgain compacts changes of ten megabytes and makes as many
// again. The tables' settings have autovacuum free the space of the deleted rows soon, and
// PostgreSQL then uses it for the new ones.
func TestCompaction_SpaceIsUsedAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for autovacuum")
	}
	t.Parallel()
	driver, dsn := open(t, postgres.Options{})
	const objects, rounds = 1000, 10
	revisions := make([]int64, objects)
	value := []byte(`{"data":"` + strings.Repeat("x", 1000) + `"}`)
	update := func() (size int64) {
		for range rounds {
			writes := make([]sqlstore.Write, objects)
			for i := range writes {
				key := sqlstore.Key{Resource: "configmaps", Namespace: "space", Name: strconv.Itoa(i)}
				writes[i] = sqlstore.Write{Op: sqlstore.Update, Key: key, Replaces: revisions[i], UID: "uid", Value: value}
				if revisions[i] == 0 {
					writes[i].Op = sqlstore.Create
				}
			}
			outcomes, err := driver.Commit(t.Context(), writes)
			if err != nil {
				t.Fatal(err)
			}
			for i, o := range outcomes {
				if o.Err != nil {
					t.Fatal(o.Err)
				}
				revisions[i] = o.Revision
			}
		}
		size, err := driver.Size(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return size
	}
	first := update()
	storetest.Compact(t, driver, revisions[objects-1])
	compacted, conn := time.Now(), connect(t, dsn)
	storetest.EventuallySucceeds(t, "autovacuum of the changes", func() error {
		var vacuumed bool
		err := conn.QueryRow(t.Context(),
			`SELECT coalesce(last_autovacuum > $1, false) FROM pg_stat_user_tables WHERE relname = 'undo_log'`,
			compacted).Scan(&vacuumed)
		if err == nil && !vacuumed {
			err = errors.New("the table was not vacuumed since the compaction")
		}
		return err
	})
	if second := update(); float64(second) > 1.5*float64(first) {
		t.Errorf("the tables have %d bytes after the first changes, and %d after a compaction and as many changes again: want at most 1.5 times as many, whatever the autovacuum has not reached yet", first, second)
	}
}
