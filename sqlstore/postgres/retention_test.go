package postgres_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/storetest"
)

func TestRetention_OfEachResource(t *testing.T) {
	t.Parallel()
	driver, dsn := open(t, postgres.Options{})
	defer driver.Close()
	conn := connect(t, dsn)
	storetest.Retention(t, driver, func() []string {
		rows, err := conn.Query(t.Context(), storetest.HistoryQuery)
		if err != nil {
			t.Fatal(err)
		}
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return texts
	})
}

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
	if err := sqlstore.New(driver, sqlstore.Options{}).Compact(t.Context(), missing); err != nil {
		t.Fatal(err)
	}
	pods := sqlstore.Resource{Resource: "pods"}
	if _, err := driver.Changes(t.Context(), sqlstore.ChangesQuery{After: missing - 1, Of: &pods, Limit: 10}); !errors.Is(err, sqlstore.ErrCompacted) {
		t.Errorf("changes after a revision before the missing ones: %v", err)
	}
}
