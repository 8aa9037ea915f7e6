package postgres

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres/pgtest"
)

// selectPages counts the pages that the transaction has read from the tables, their indexes and TOAST tables, in
// shared buffers or not.
const selectPages = `
SELECT sum(pg_stat_get_xact_blocks_fetched(oid))::bigint FROM pg_class
WHERE relnamespace IN (current_schema()::regnamespace, 'pg_toast'::regnamespace)`

// growing is a store with sessions that were opened while it was empty.
type growing struct {
	dsn            string
	reader, writer *pgx.Conn
}

func (g *growing) connect(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), g.dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// open opens the sessions.
func (g *growing) open(t *testing.T) {
	t.Helper()
	g.reader, g.writer = g.connect(t), g.connect(t)
	if _, err := g.reader.Exec(t.Context(), configureReads); err != nil {
		t.Fatal(err)
	}
	if _, err := g.writer.Exec(t.Context(), configure, "1000", false); err != nil {
		t.Fatal(err)
	}
}

// run executes a statement, in a transaction that it rolls back, and returns how many pages it reads and how many rows
// it returns.
func (g *growing) run(t *testing.T, name string, s statement) (pages, rows int) {
	t.Helper()
	conn := g.reader
	if s.text == applyBatch {
		conn = g.writer
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if c := configurations[name]; c != nil && s.text != applyBatch {
		if _, err := tx.Exec(t.Context(), c[0].(string), c[1:]...); err != nil {
			t.Fatal(err)
		}
	}
	var before, after int
	if err := tx.QueryRow(t.Context(), selectPages).Scan(&before); err != nil {
		t.Fatal(err)
	}
	result, err := tx.Query(t.Context(), s.text, s.arguments...)
	if err != nil {
		t.Fatal(name, err)
	}
	for result.Next() {
		rows++
	}
	if err := result.Err(); err != nil {
		t.Fatal(name, err)
	}
	if err := tx.QueryRow(t.Context(), selectPages).Scan(&after); err != nil {
		t.Fatal(err)
	}
	return after - before, rows
}

// grown is how many objects the store grows to.
const grown = 20_000

// grow fills the store on another session: it had the first rows before, and has all of them then.
func (g *growing) grow(t *testing.T, before, all int) {
	t.Helper()
	text := strings.NewReplacer(
		"generate_series(1, 100000)", fmt.Sprintf("generate_series(%d, %d)", before+1, all),
		"'{}'", `'{"a":"' || repeat(md5(i::text), 20) || '"}'`, "FROM current_objects;", fmt.Sprintf("FROM current_objects WHERE revision > %d;", before),
		"generate_series(0, 9) i;", "generate_series(0, 9) i ON CONFLICT DO NOTHING;").Replace(manyObjects)
	if err := g.connect(t).PgConn().Exec(t.Context(), text).Close(); err != nil {
		t.Fatal(err)
	}
}

// batches returns batches of 30 writes of each kind, as applyBatch with its arguments. Each requires an object, which
// is there, and that another resource has none.
func (g *growing) batches(t *testing.T) map[string]statement {
	t.Helper()
	var o observation
	if err := g.reader.QueryRow(t.Context(), selectState, int64(grown)).Scan(o.columns()...); err != nil {
		t.Fatal(err)
	}
	key := func(i int) sqlstore.Key {
		return sqlstore.Key{Resource: fmt.Sprint("resource", i%10), Namespace: fmt.Sprint("namespace", i/10%100), Name: fmt.Sprint("name", i)}
	}
	all := map[string]statement{}
	for _, op := range []sqlstore.Op{sqlstore.Create, sqlstore.Update, sqlstore.Delete} {
		var batch []sqlstore.Write
		for n := range 30 {
			i := 3 + 60*n
			w := sqlstore.Write{
				Op: op, Key: key(i), Replaces: int64(i), UID: "uid", Value: []byte(`{}`),
				Requires: &sqlstore.Requirement{Key: key(i + 10)}, RequiresNone: &sqlstore.Resource{Resource: "none"},
			}
			if op == sqlstore.Create {
				w.Key.Name, w.Replaces = w.Key.Name+"a", 0
			}
			batch = append(batch, w)
		}
		arguments := append(arrays(batch), o.Revision, "", "", o.instance)
		all[string(op)] = statement{applyBatch, append(arguments, others(batch)...)}
	}
	return all
}

// examined is how many rows or entries of an index some statements look at beside those that they return.
var examined = map[string]int{
	"count": grown / 10, "count at": grown/10 + grown/100, "count ns at": grown / 100, "list since": grown / 100, "list ns since": grown / 100,
	"changes in": grown / 100, "compact": 100, "usage": grown,
}

// TestPlans_StayLookupsWhenTablesGrow: plans that the server made while the tables were empty or small, and those that it
// makes without statistics, as of an imported database and after pg_upgrade, read a few pages a row, however many rows
// there are.
func TestPlans_StayLookupsWhenTablesGrow(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts PostgreSQL")
	}
	cluster, err := pgtest.Config{Settings: []string{"autovacuum=off"}}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Remove)
	for _, test := range []struct {
		name string
		// before are the rows when the sessions are opened. analyzed says that they are counted then, and
		// warm that each statement is executed then, until the server has a generic plan.
		before         int
		analyzed, warm bool
	}{
		{"empty", 0, false, true},
		{"analyzed_empty", 0, true, true},
		{"analyzed_small", 20, true, true},
		{"analyzed", grown, true, true},
		{"imported", grown, false, false},
		{"imported_generic", grown, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := cluster.Exec(t.Context(), `CREATE DATABASE `+test.name); err != nil {
				t.Fatal(err)
			}
			g := &growing{dsn: cluster.DSN(test.name)}
			if _, err := migrations.Up(t.Context(), g.dsn); err != nil {
				t.Fatal(err)
			}
			g.grow(t, 0, test.before)
			if test.analyzed {
				if _, err := g.connect(t).Exec(t.Context(), `VACUUM ANALYZE`); err != nil {
					t.Fatal(err)
				}
			}
			g.open(t)
			if test.warm {
				g.warm(t)
			}
			g.grow(t, test.before, grown)
			statements := allStatements(grown, 10)
			maps.Copy(statements, g.batches(t))
			for name, s := range statements {
				pages, rows := g.run(t, name, s)
				if limit := 40 + 12*rows + 2*examined[name]; pages > limit {
					t.Errorf("%s reads %d pages for %d rows, more than %d", name, pages, rows, limit)
				}
				t.Logf("%s: %d pages, %d rows", name, pages, rows)
			}
		})
	}
}

// warm executes each statement until the server has a generic plan, which it makes at the sixth execution.
func (g *growing) warm(t *testing.T) {
	t.Helper()
	for name, s := range allStatements(grown, 10) {
		for range 7 {
			g.run(t, name, s)
		}
	}
}
