package etcd_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"byre/sqlstore/etcd"
	"byre/sqlstore/postgres/pgtest"
)

// The table kine as kine's drivers make it, and its rows in the test.
const (
	tableSQLite = `CREATE TABLE kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, created INTEGER, deleted INTEGER,
		create_revision INTEGER, prev_revision INTEGER, lease INTEGER, value BLOB, old_value BLOB)`
	tablePostgres = `CREATE TABLE kine (id BIGSERIAL PRIMARY KEY, name text COLLATE "C", created INTEGER, deleted INTEGER,
		create_revision BIGINT, prev_revision BIGINT, lease INTEGER, value bytea, old_value bytea)`
	rows = `INSERT INTO kine (id, name, created, deleted, create_revision, prev_revision, lease, value) VALUES
		(1, 'compact_rev_key', 1, 0, 0, 0, 0, ''), (2, '/registry/a', 1, 0, 0, 0, 0, 'old'), (3, '/registry/b', 1, 0, NULL, 0, 0, 'b'),
		(4, '/registry/a', 0, 0, 2, 2, 0, 'new'), (5, '/registry/b', 0, 1, 3, 3, 0, 'b'), (6, 'gap-6', 0, 1, 0, 0, 0, NULL),
		(7, '/registry/b', 1, 0, 3, 5, 3600, 'again')`
)

var want = []etcd.KeyValue{
	{Key: "compact_rev_key", Value: []byte{}, Created: 1, Revision: 1},
	{Key: "/registry/a", Value: []byte("new"), Created: 2, Revision: 4},
	{Key: "/registry/b", Value: []byte("again"), Created: 7, Revision: 7, TTL: time.Hour},
}

func TestDatabase_YieldsWhatExists(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(t *testing.T) (endpoint string, execute func(...string)){
		"sqlite": sqlite, "postgres": postgres,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			endpoint, execute := make(t)
			if _, err := etcd.OpenKine(t.Context(), endpoint); !errors.Is(err, etcd.ErrNotKine) {
				t.Errorf("a database without the table: %v", err)
			}
			execute(map[string]string{"sqlite": tableSQLite, "postgres": tablePostgres}[name], rows)
			d, err := etcd.OpenKine(t.Context(), endpoint)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			// kine continues to write.
			execute(`INSERT INTO kine (id, name, created, deleted, create_revision, prev_revision, lease, value) VALUES (8, '/registry/c', 1, 0, 0, 0, 0, 'c')`)
			for range 2 {
				var got []etcd.KeyValue
				if err := d.Each(t.Context(), func(kv etcd.KeyValue) error {
					if len(kv.Value) == 0 {
						kv.Value = []byte{}
					}
					got = append(got, kv)
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("Each yields %v, want %v", got, want)
				}
			}
			if d.Revision() != 7 || d.Len() != 3 {
				t.Errorf("there are %d keys at revision %d, want 3 at 7", d.Len(), d.Revision())
			}
		})
	}
}

func sqlite(t *testing.T) (string, func(...string)) {
	path := filepath.Join(t.TempDir(), "state.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	execute := func(statements ...string) {
		for _, s := range statements {
			if _, err := db.ExecContext(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
	}
	execute(`CREATE TABLE other (id INTEGER)`)
	return "sqlite://" + path, execute
}

func postgres(t *testing.T) (string, func(...string)) {
	dsn := pgtest.DSN(t)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return dsn, func(statements ...string) {
		for _, s := range statements {
			if _, err := conn.Exec(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
	}
}
