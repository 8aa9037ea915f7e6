package postgres_test

import (
	"context"
	"testing"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// A batch that loses a race against another transaction is sent again: the server has rolled it
// back, and the client need not know.
func TestCommit_RepeatsALostRace(t *testing.T) {
	t.Parallel()
	for _, raise := range []string{
		`ERRCODE = '40001'`, `ERRCODE = '40P01'`, `ERRCODE = '23505', TABLE = 'undo_log'`,
		`ERRCODE = '23505', TABLE = 'resources'`, `ERRCODE = '23505', TABLE = 'current_objects'`,
	} {
		driver, dsn := open(t, postgres.Options{})
		defer driver.Close()
		conn := connect(t, dsn)
		for _, statement := range []string{
			`CREATE SEQUENCE race`, // what was taken of a sequence is not rolled back
			`CREATE FUNCTION race() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				IF nextval('race') < 3 THEN RAISE EXCEPTION 'lost' USING ` + raise + `; END IF;
				RETURN NEW; END $$`,
			`CREATE TRIGGER race BEFORE INSERT ON undo_log FOR EACH ROW EXECUTE FUNCTION race()`,
		} {
			if _, err := conn.Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		if o, err := driver.Commit(t.Context(), create("a")); err != nil || o[0].Revision != 1 {
			t.Errorf("%s: %v, %v", raise, o, err)
		}
	}
}

// Transactions that need READ COMMITTED ask for it, whatever the default of the database is: a
// snapshot of before the writers' lock would not show what the previous holder has committed.
func TestDriver_AsksForItsIsolation(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"repeatable read", "serializable"} {
		dsn := pgtest.DSN(t)
		if _, err := migrations.Up(t.Context(), dsn); err != nil {
			t.Fatal(err)
		}
		conn := connect(t, dsn)
		if _, err := conn.Exec(t.Context(), `DO $$ BEGIN
			EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''`+isolation+`''', current_database()); END $$`); err != nil {
			t.Fatal(err)
		}
		first := openMore(t, dsn, postgres.Options{})
		createDense(t, []*postgres.Driver{first, openMore(t, dsn, postgres.Options{}), openMore(t, dsn, postgres.Options{})})

		// A compaction that waits for the lock, while its holder changes the row.
		if _, err := conn.Exec(t.Context(), `BEGIN; UPDATE store SET compacted = compacted`); err != nil {
			t.Fatal(err)
		}
		compacted := make(chan error, 1)
		go func() {
			_, _, err := first.DeleteHistory(t.Context(), sqlstore.Deletion{Of: create("a")[0].Key.Of(), UpTo: 2, Limit: 10})
			compacted <- err
		}()
		admin := connect(t, dsn)
		storetest.EventuallyDone(t, "a compaction that waits", func(ctx context.Context) (waits bool, err error) {
			err = admin.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits)
			return waits, err
		})
		if _, err := conn.Exec(t.Context(), `COMMIT`); err != nil {
			t.Fatal(err)
		}
		if err := <-compacted; err != nil {
			t.Errorf("%s: compaction: %v", isolation, err)
		}
	}
}
