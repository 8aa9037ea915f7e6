package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// While a snapshot is open, as that of pg_dump is for its whole run, PostgreSQL can't remove
// deleted and replaced rows. Commits and compaction continue nevertheless, and a read of the
// store's state touches as few pages as before.
func TestReads_StayFlatUnderAnOldSnapshot(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	driver, err := Open(t.Context(), dsn+"&options=-c%20synchronous_commit%3Doff", Options{AllowLoss: true})
	if err != nil {
		t.Fatal(err)
	}
	defer driver.Close()
	resource := func(i int) string { return fmt.Sprint("resource", i) }
	create := func(resources, from, to int) (last int64) {
		t.Helper()
		for i := from; i < to; i++ {
			o, err := driver.Commit(t.Context(), []sqlstore.Write{{
				Op: sqlstore.Create, Key: sqlstore.Key{Resource: resource(i % resources), Name: fmt.Sprint(i)}, Value: []byte(`{}`),
			}})
			if err != nil || o[0].Err != nil {
				t.Fatal(o, err)
			}
			last = o[0].Revision
		}
		return last
	}
	conns := make([]*pgx.Conn, 2)
	for i := range conns {
		if conns[i], err = pgx.Connect(t.Context(), dsn); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close(context.Background())
	}
	create(1, 0, 10)
	dump, conn := conns[0], conns[1]
	if _, err := dump.Exec(t.Context(), `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM objects`); err != nil {
		t.Fatal(err)
	}
	before := buffers(t, conn, selectState, int64(10))
	last := create(1, 10, 1500)
	if now := buffers(t, conn, selectState, last); now > before+4 {
		t.Errorf("a read of the state touched %d pages before 1500 commits, and %d after", before, now)
	}
	storetest.Compact(t, driver, last)
	if now := buffers(t, conn, selectState, last); now > before+8 {
		t.Errorf("a read of the state touched %d pages before a compaction of all, and %d after", before, now)
	}
	if state, err := driver.State(t.Context()); err != nil || state.Revision != last || state.Compacted != last {
		t.Errorf("state: %+v, %v", state, err)
	}
	if next := create(1, 1500, 1501); next != last+1 {
		t.Errorf("revision %d after %d", next, last)
	}

	// Only the chunks of the first resource raise the compacted revision of the store.
	const resources = 100
	last = create(resources, 1501, 3000)
	before = buffers(t, conn, selectState, last)
	for i := resources - 1; i >= 0; i-- {
		deletion := sqlstore.Deletion{Of: sqlstore.Resource{Resource: resource(i)}, UpTo: last, Limit: 1}
		for deleted := 1; deleted > 0; {
			if deleted, _, err = driver.DeleteHistory(t.Context(), deletion); err != nil {
				t.Fatal(err)
			}
		}
	}
	if now := buffers(t, conn, selectState, last); now > before+4 {
		t.Errorf("a read of the state touched %d pages before a compaction of %d resources, and %d after", before, resources, now)
	}
}

// buffers returns how many pages a query touches.
func buffers(t *testing.T, conn *pgx.Conn, query string, arguments ...any) int {
	t.Helper()
	var text []byte
	if err := conn.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+query, arguments...).Scan(&text); err != nil {
		t.Fatal(err)
	}
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal(text, &plans); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan.Hit + plans[0].Plan.Read
}
