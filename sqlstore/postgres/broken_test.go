package postgres_test

import (
	"errors"
	"testing"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
)

// If the connection breaks after a batch was sent, the outcome of the batch is unknown,
// also behind a pooler, where no statements are prepared.
func TestCommit_OnABrokenConnectionIsUnknown(t *testing.T) {
	t.Parallel()
	for mode, parameter := range map[string]string{"session": "", "pooled": "&default_query_exec_mode=exec"} {
		for name, point := range map[string]pgtest.Point{"before COMMIT": pgtest.Sent, "after COMMIT": pgtest.Answered} {
			t.Run(mode+" "+name, func(t *testing.T) {
				t.Parallel()
				dsn := pgtest.DSN(t)
				if _, err := migrations.Up(t.Context(), dsn); err != nil {
					t.Fatal(err)
				}
				proxy := pgtest.NewProxy(t, dsn)
				driver := openMore(t, proxy.DSN()+parameter, postgres.Options{})
				mustCreate(t, driver, "a")
				proxy.Set(pgtest.Failpoint{
					Statement: "COMMIT", After: "INSERT INTO undo_log", Point: point,
					Do: func() pgtest.Action { return pgtest.Drop },
				})
				if _, err := driver.Commit(t.Context(), create("b")); !errors.Is(err, sqlstore.ErrUnknown) {
					t.Errorf("commit: %v", err)
				}
				_, _, err := driver.Get(t.Context(), create("b")[0].Key)
				if isThere := err == nil; isThere != (point == pgtest.Answered) {
					t.Errorf("the object: %v", err)
				}
			})
		}
	}
}
