package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"byre/migrations"
	"byre/sqlstore/postgres/pgtest"
)

// database is an empty database of one dialect.
type database struct {
	endpoint string
	dialect  migrations.Dialect
	// exec runs statements in the database; query returns the texts of one column.
	exec  func(t *testing.T, statement string)
	query func(t *testing.T, query string) []string
	// fresh returns another empty database.
	fresh func(t *testing.T) database
}

func sqliteDatabase(t *testing.T) database {
	path := filepath.Join(t.TempDir(), "byre.db")
	open := func(t *testing.T) *sql.DB {
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		return db
	}
	return database{
		endpoint: "sqlite://" + path, dialect: migrations.SQLite, fresh: sqliteDatabase,
		exec: func(t *testing.T, statement string) {
			if _, err := open(t).ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		},
		query: func(t *testing.T, query string) (texts []string) {
			rows, err := open(t).QueryContext(t.Context(), query)
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			for rows.Next() {
				var text string
				if err := rows.Scan(&text); err != nil {
					t.Fatal(err)
				}
				texts = append(texts, text)
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			return texts
		},
	}
}

func postgresDatabase(t *testing.T) database {
	dsn := pgtest.DSN(t)
	// Each query has a connection of its own, because tests that wait make many queries.
	connect := func(t *testing.T) (conn *pgx.Conn, done func()) {
		conn, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		return conn, func() { conn.Close(context.Background()) }
	}
	return database{
		endpoint: dsn, dialect: migrations.Postgres, fresh: postgresDatabase,
		exec: func(t *testing.T, statement string) {
			conn, done := connect(t)
			defer done()
			if _, err := conn.Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		},
		query: func(t *testing.T, query string) []string {
			conn, done := connect(t)
			defer done()
			rows, _ := conn.Query(t.Context(), query)
			texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			return texts
		},
	}
}

const (
	sqliteSchema = `
SELECT type || ' ' || name || ' ' || coalesce(sql, '') FROM sqlite_schema WHERE name NOT LIKE 'sqlite_stat%' ORDER BY 1`
	// Names of constraints are left out, because the server generates them.
	postgresSchema = `
SELECT c.relkind::text || ' ' || c.relname || ' ' || coalesce(array_to_string(c.reloptions, ','), '') || ' ' ||
       coalesce(string_agg(a.attname || ' ' || a.atttypid::regtype::text || ' ' || a.attnotnull || ' ' || a.attcompression::text, ', ' ORDER BY a.attnum), '')
FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'public'::regnamespace
GROUP BY c.oid, c.relkind, c.relname, c.reloptions
UNION ALL
SELECT p.proname || ' ' || p.prosrc FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
ORDER BY 1`
)

func eachDialect(t *testing.T, test func(t *testing.T, d database, schema string)) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, sqliteDatabase(t), sqliteSchema)
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, postgresDatabase(t), postgresSchema)
	})
}

// The steps up, down to an empty database and up again lead to the same schema.
func TestMigrate_UpDownUpGivesTheSameSchema(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, d database, schema string) {
		latest, err := migrations.Latest(d.dialect)
		if err != nil || latest < 1 {
			t.Fatalf("latest: %d, %v", latest, err)
		}
		expect := func(what string, state migrations.State, err error, want migrations.Version) {
			t.Helper()
			if wanted := (migrations.State{Dialect: d.dialect, Current: want, Latest: latest}); err != nil || state != wanted {
				t.Fatalf("%s: %+v, %v; want %+v", what, state, err, wanted)
			}
		}
		state, err := migrations.Status(t.Context(), d.endpoint)
		expect("status of nothing", state, err, 0)
		var steps []migrations.Step
		onStep := func(s migrations.Step) { steps = append(steps, s) }
		state, err = migrations.Up(t.Context(), d.endpoint, onStep)
		expect("up", state, err, latest)
		expectSteps := func(what string, first, last migrations.Version) {
			t.Helper()
			var want []migrations.Step
			for number := first; number <= last; number++ {
				want = append(want, migrations.Step{Number: number, Latest: latest})
			}
			if !slices.Equal(steps, want) {
				t.Errorf("%s: steps %v, want %v", what, steps, want)
			}
			steps = nil
		}
		expectSteps("up", 1, latest)
		first := d.query(t, schema)
		state, err = migrations.Up(t.Context(), d.endpoint, onStep)
		expect("up again", state, err, latest)
		expectSteps("up again", 1, 0)

		if d.dialect == migrations.Postgres { // of another program, such as one that replicates the database
			d.exec(t, "CREATE PUBLICATION everything FOR ALL TABLES")
		}
		for version := latest - 1; version >= 0; version-- {
			state, err = migrations.Down(t.Context(), d.endpoint, true, onStep)
			expect("down", state, err, version)
			expectSteps("down", version+1, version+1)
		}
		if left := d.query(t, schema); len(left) > 0 {
			t.Errorf("down left %q", left)
		}
		state, err = migrations.Down(t.Context(), d.endpoint, true)
		expect("down from nothing", state, err, 0)

		state, err = migrations.Up(t.Context(), d.endpoint)
		expect("up once more", state, err, latest)
		if second := d.query(t, schema); strings.Join(second, "\n") != strings.Join(first, "\n") {
			t.Errorf("the second up gives another schema:\n%s\n\n%s", strings.Join(first, "\n"), strings.Join(second, "\n"))
		}
		state, err = migrations.Status(t.Context(), d.endpoint)
		expect("status", state, err, latest)
	})
}

func TestMigrate_RefusesANewerSchema(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, d database, schema string) {
		if _, err := migrations.Up(t.Context(), d.endpoint); err != nil {
			t.Fatal(err)
		}
		up := func(ctx context.Context, endpoint string) (migrations.State, error) {
			return migrations.Up(ctx, endpoint)
		}
		deleteAll := func(ctx context.Context, endpoint string) (migrations.State, error) {
			return migrations.Down(ctx, endpoint, true)
		}
		d.exec(t, `UPDATE byre_schema_version SET version = 999`)
		d.exec(t, `UPDATE store SET least_version = 998`)
		before := d.query(t, schema)
		for name, move := range map[string]func(context.Context, string) (migrations.State, error){
			"up": up, "down": deleteAll,
		} {
			if _, err := move(t.Context(), d.endpoint); !errors.Is(err, migrations.ErrNewer) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if state, err := migrations.Status(t.Context(), d.endpoint); state.Current != 999 ||
			!errors.Is(err, migrations.ErrNewer) {
			t.Errorf("status: %+v, %v", state, err)
		}
		if after := d.query(t, schema); strings.Join(before, "\n") != strings.Join(after, "\n") {
			t.Errorf("a newer database was changed:\n%s", strings.Join(after, "\n"))
		}
	})
}

// A newer schema that lets programs of this one use it is used, and not changed.
func TestMigrate_UsesANewerSchemaThatAllowsIt(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, d database, _ string) {
		latest, err := migrations.Latest(d.dialect)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := migrations.Up(t.Context(), d.endpoint); err != nil {
			t.Fatal(err)
		}
		d.exec(t, `UPDATE byre_schema_version SET version = 999`)
		if state, err := migrations.Up(t.Context(), d.endpoint); err != nil || state.Current != 999 {
			t.Errorf("up: %+v, %v", state, err)
		}
		if state, err := migrations.Status(t.Context(), d.endpoint); err != nil || state.Current != 999 {
			t.Errorf("status: %+v, %v", state, err)
		}
		if _, err := migrations.Down(t.Context(), d.endpoint, true); !errors.Is(err, migrations.ErrNewer) {
			t.Errorf("down: %v", err)
		}
		for least, want := range map[migrations.Version]error{1: nil, latest: nil, latest + 1: migrations.ErrNewer} {
			if err := migrations.Check(d.dialect, migrations.Schema{Version: 999, Least: least}); !errors.Is(err, want) {
				t.Errorf("least version %d: %v, want %v", least, err, want)
			}
		}
	})
}

// A database of before the first release is refused with what to do, and not changed.
func TestMigrate_RefusesAnUnreleasedSchema(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, d database, schema string) {
		if d.dialect == migrations.SQLite {
			d.exec(t, fmt.Sprintf(`PRAGMA application_id = %d`, migrations.ApplicationID))
		}
		d.exec(t, `CREATE TABLE byre_schema (version bigint NOT NULL, dirty boolean NOT NULL)`)
		d.exec(t, `INSERT INTO byre_schema VALUES (3, false)`)
		before := d.query(t, schema)
		for name, move := range map[string]func() (migrations.State, error){
			"up":     func() (migrations.State, error) { return migrations.Up(t.Context(), d.endpoint) },
			"down":   func() (migrations.State, error) { return migrations.Down(t.Context(), d.endpoint, true) },
			"status": func() (migrations.State, error) { return migrations.Status(t.Context(), d.endpoint) },
		} {
			_, err := move()
			if !errors.Is(err, migrations.ErrUnreleased) || !strings.Contains(err.Error(), "schema 3") ||
				!strings.Contains(err.Error(), "byre restore") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if after := d.query(t, schema); !slices.Equal(before, after) {
			t.Errorf("the database was changed:\n%s", strings.Join(after, "\n"))
		}
	})
}

// stored makes five objects and seven changes.
const stored = `
INSERT INTO current_objects (revision, resource_id, namespace, name, uid, generation, created_revision, time, verb, subresource, manager, who, real_user, encoding, value)
SELECT n, 1, '', 'o' || n, '', 0, n, '2026-01-01T00:00:00.000000Z', 'create', '', '', '', '', '', '{}'
FROM (SELECT 1 AS n UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5) five;
INSERT INTO undo_log (revision, resource_id, time, op, verb, subresource, manager, who, real_user, audit_id, namespace, name, uid, replaces, created_revision)
SELECT n, 1, '2026-01-01T00:00:00.000000Z', 'create', 'create', '', '', '', '', '', '', 'o' || n, '', 0, n
FROM (SELECT 1 AS n UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION SELECT 7) seven`

// storedIn is stored in each dialect.
var storedIn = map[migrations.Dialect]string{
	migrations.SQLite:   stored,
	migrations.Postgres: strings.ReplaceAll(stored, "'2026-01-01T00:00:00.000000Z'", "now()"),
}

// downToFirst reverses all steps but the first.
func downToFirst(t *testing.T, d database) {
	t.Helper()
	state, err := migrations.Status(t.Context(), d.endpoint)
	for ; err == nil && state.Current > 1; state, err = migrations.Down(t.Context(), d.endpoint, false) {
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A migration down to any step but that of an empty database, and up again, keeps the rows, as the views show them.
func TestMigrate_KeepsRowsFromEachStep(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, d database, _ string) {
		state, err := migrations.Up(t.Context(), d.endpoint)
		if err != nil {
			t.Fatal(err)
		}
		d.exec(t, storedIn[d.dialect])
		d.exec(t, `INSERT INTO resources (id, "group", resource, defined_by, compacted) VALUES (1, '', 'pods', 'builtin', 0)`)
		d.exec(t, `UPDATE current_objects SET encoding = 'e' || name`)
		d.exec(t, `UPDATE undo_log SET encoding = 'u' || name WHERE revision > 3`)
		rows := func() []string {
			return append(d.query(t, `SELECT name || ' ' || encoding FROM objects ORDER BY revision`),
				append(d.query(t, `SELECT name || ' ' || coalesce(encoding, '') FROM changes ORDER BY revision`),
					d.query(t, `SELECT CAST(least_version AS text) FROM store`)...)...)
		}
		want := rows()
		for version := state.Latest - 1; version >= 1; version-- {
			for current := state.Latest; current > version; current-- {
				if state, err = migrations.Down(t.Context(), d.endpoint, false); err != nil || state.Current != current-1 {
					t.Fatalf("down from %d: %+v, %v", current, state, err)
				}
			}
			if _, err := migrations.Up(t.Context(), d.endpoint); err != nil {
				t.Fatal(err)
			}
			if got := rows(); !slices.Equal(got, want) {
				t.Errorf("from step %d: %q, want %q", version, got, want)
			}
		}
	})
}

// The past of what a program of the third step has written ends where watches do. A program that knows both ends moves
// them apart, and one that does not sets them together again, whether or not it moves the one that it knows.
func TestSteps_TwoEndsOfHistory(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, d database, _ string) {
		state, err := migrations.Up(t.Context(), d.endpoint)
		for ; err == nil && state.Current > 3; state, err = migrations.Down(t.Context(), d.endpoint, false) {
		}
		if err != nil {
			t.Fatal(err)
		}
		insert := `INSERT INTO resources (id, "group", resource, defined_by, compacted) VALUES (%d, '', '%[1]d', 'builtin', %d)`
		d.exec(t, `UPDATE store SET revision = 9, compacted = 7`)
		d.exec(t, fmt.Sprintf(insert, 1, 7))
		if _, err := migrations.Up(t.Context(), d.endpoint); err != nil {
			t.Fatal(err)
		}
		d.exec(t, fmt.Sprintf(insert, 2, 5))
		expect := func(what string, want ...string) {
			t.Helper()
			if got := d.query(t, `
SELECT compacted || ' ' || coalesce(complete_after, compacted) FROM resources ORDER BY id`); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		if got := d.query(t, `SELECT CAST(complete_after AS text) FROM store`); !slices.Equal(got, []string{"7"}) {
			t.Errorf("the store is complete after %q", got)
		}
		expect("by older programs", "7 7", "5 5")
		const epoch = `
UPDATE resources SET complete_after = coalesce(complete_after, compacted), compacted = %d, ends_written = ends_written + 1`
		d.exec(t, fmt.Sprintf(epoch, 100))
		expect("an epoch", "100 7", "100 5")
		d.exec(t, fmt.Sprintf(epoch, 200))
		expect("another epoch", "200 7", "200 5")
		d.exec(t, `UPDATE resources SET retained_for = 1`)
		expect("a write of another column", "200 7", "200 5")
		d.exec(t, `UPDATE resources SET compacted = compacted WHERE id = 1`)
		expect("an older program", "200 200", "200 5")
		d.exec(t, fmt.Sprintf(epoch, 300))
		expect("an epoch after that", "300 200", "300 5")
	})
}

// Programs select all columns of a view by their order, and a program that is older than the schema does so too.
func TestSteps_KeepTheColumnsThatProgramsSelect(t *testing.T) {
	t.Parallel()
	of := map[migrations.Dialect]string{
		migrations.SQLite: `SELECT name FROM pragma_table_info('change_states') ORDER BY cid`,
		migrations.Postgres: `
SELECT attname::text FROM pg_attribute WHERE attrelid = 'change_states'::regclass AND attnum > 0 ORDER BY attnum`,
	}
	want := map[migrations.Dialect]string{
		migrations.SQLite: "revision time op verb subresource manager who real_user audit_id group resource defined_by " +
			"namespace name uid replaces created_revision change_sum encoding expires value record_sum " +
			"new_uid new_encoding new_expires new_value new_record_sum resource_id",
		migrations.Postgres: "revision time op verb subresource manager who real_user audit_id group resource defined_by " +
			"namespace name uid replaces created_revision encoding expires value " +
			"new_uid new_encoding new_expires new_value resource_id bytes",
	}
	eachDialect(t, func(t *testing.T, d database, _ string) {
		if _, err := migrations.Up(t.Context(), d.endpoint); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(d.query(t, of[d.dialect]), " "); got != want[d.dialect] {
			t.Errorf("the columns are %s, want %s", got, want[d.dialect])
		}
	})
}

// Down does not run the step that deletes all data unless the caller allows it. Its error tells the
// number of rows.
func TestMigrate_DownRefusesToDeleteData(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, d database, _ string) {
		if _, err := migrations.Up(t.Context(), d.endpoint); err != nil {
			t.Fatal(err)
		}
		d.exec(t, storedIn[d.dialect])
		downToFirst(t, d)
		_, err := migrations.Down(t.Context(), d.endpoint, false)
		var deletes *migrations.DeletesError
		if !errors.As(err, &deletes) || *deletes != (migrations.DeletesError{Objects: 5, Changes: 7}) {
			t.Fatalf("down: %v", err)
		}
		if left := d.query(t, `SELECT name FROM current_objects`); len(left) != 5 {
			t.Errorf("the refusal left %d objects", len(left))
		}
		if state, err := migrations.Down(t.Context(), d.endpoint, true); err != nil || state.Current != 0 {
			t.Errorf("down on purpose: %+v, %v", state, err)
		}
	})
}

func TestMigrate_RefusesADirtyDatabase(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, d database, _ string) {
		if _, err := migrations.Up(t.Context(), d.endpoint); err != nil {
			t.Fatal(err)
		}
		d.exec(t, `UPDATE byre_schema_version SET dirty = true`)
		if _, err := migrations.Up(t.Context(), d.endpoint); !errors.Is(err, migrations.ErrDirty) {
			t.Errorf("up: %v", err)
		}
		state, err := migrations.Status(t.Context(), d.endpoint)
		if state.Current != state.Latest || !errors.Is(err, migrations.ErrDirty) {
			t.Errorf("status: %+v, %v", state, err)
		}
	})
}

func TestMigrate_RefusesAForeignDatabase(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, d database, schema string) {
		d.exec(t, `CREATE TABLE schema_migrations (version integer, dirty boolean)`)
		before := d.query(t, schema)
		if _, err := migrations.Up(t.Context(), d.endpoint); !errors.Is(err, migrations.ErrForeign) {
			t.Errorf("up: %v", err)
		}
		if after := d.query(t, schema); strings.Join(before, "\n") != strings.Join(after, "\n") {
			t.Errorf("another program's database was changed:\n%s", strings.Join(after, "\n"))
		}
	})
}

// Of several processes that start at the same time, one migrates.
func TestMigrate_ConcurrentProcessesMigrateOnce(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, d database, _ string) {
		var all sync.WaitGroup
		errs := make([]error, 5)
		for i := range errs {
			all.Go(func() { _, errs[i] = migrations.Up(t.Context(), d.endpoint) })
		}
		all.Wait()
		for _, err := range errs {
			var inUse *migrations.InUseError
			if err != nil && !errors.As(err, &inUse) {
				t.Error(err)
			}
		}
		if state, err := migrations.Status(t.Context(), d.endpoint); err != nil || state.Current != state.Latest {
			t.Errorf("status: %+v, %v", state, err)
		}
	})
}

func TestSQLite_FileIsPrivate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "byre.db")
	if _, err := migrations.Up(t.Context(), "sqlite://"+path); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode != 0o600 {
		t.Errorf("the database can be read with mode %v", mode)
	}
}

func TestSQLite_RefusesWhatIsNoDatabase(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"text":  "hello",
		"page":  strings.Repeat("hello ", 1000),
		"short": "SQLite format 3\x00",
	} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := migrations.Up(t.Context(), "sqlite://"+path); !errors.Is(err, migrations.ErrForeign) {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("%s was changed", name)
		}
	}
}

func TestEndpoint_Parse(t *testing.T) {
	t.Parallel()
	for endpoint, want := range map[string]string{
		"sqlite:///a/b.db":                 "sqlite /a/b.db",
		"sqlite:a/b.db":                    "sqlite a/b.db",
		"sqlite:///a%20b%3F.db":            "sqlite /a b?.db",
		"postgres://u@h/d?sslmode=disable": "postgres postgres://u@h/d?sslmode=disable",
		"postgresql://h1,h2/d":             "postgres postgresql://h1,h2/d",
		"host=/tmp dbname=byre":            "postgres host=/tmp dbname=byre",
		"":                                 "error",
		"sqlite://":                        "error",
		"sqlite:///a?mode=ro":              "error",
		"mysql://u:secret@h/d":             "error",
		"/a/b.db":                          "error",
	} {
		dialect, dsn, err := migrations.ParseEndpoint(endpoint)
		got := fmt.Sprintf("%s %s", dialect, dsn)
		if err != nil {
			got = "error"
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: the error repeats the password: %v", endpoint, err)
			}
		}
		if got != want {
			t.Errorf("%s: %s, want %s", endpoint, got, want)
		}
	}
}

func TestSQLiteDSN_EscapesPaths(t *testing.T) {
	t.Parallel()
	if got, want := migrations.SQLiteDSN("/a b/c?d#e%f.db"), "file:/a%20b/c%3Fd%23e%25f.db"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if _, err := url.Parse(migrations.SQLiteDSN("/a")); err != nil {
		t.Error(err)
	}
}

// FuzzParseEndpoint: ParseEndpoint returns a file, a connection string, or an error that does not
// contain a password. SQLiteDSN escapes the path of a file so that unescaping returns the path.
func FuzzParseEndpoint(f *testing.F) {
	for _, endpoint := range []string{
		"", ":", "sqlite:", "sqlite://", "sqlite:///var/lib/byre.db", "sqlite:relative.db", "sqlite://%3Fmode=memory",
		"sqlite:///a%00b", "sqlite:///%zz",
		"sqlite:///a?mode=ro", "sqlite:///a#b", "sqlite:////", "sqlite::memory:", "byre.db", "SQLITE:///x",
		"postgres://u:secret@h/db", "postgresql://h1,h2:5433/db?sslmode=disable", "host=h password='se cret' user=u",
		"mysql://u:secret@h/db", "postgres:", "=",
	} {
		f.Add(endpoint)
	}
	f.Fuzz(func(t *testing.T, endpoint string) {
		dialect, place, err := migrations.ParseEndpoint(endpoint)
		switch {
		case err != nil:
			// The error may contain the three bytes of a malformed escape.
			said, escape, _ := strings.Cut(err.Error(), "invalid URL escape ")
			if len(escape) > len(`"%zz"`)+len(`\x00`)*3 || strings.Contains(said, "secret") {
				t.Errorf("the error repeats the endpoint: %v", err)
			}
		case place == "":
			t.Error("an endpoint without a place is accepted")
		case dialect == migrations.SQLite:
			name, parameters, some := strings.Cut(strings.TrimPrefix(migrations.SQLiteDSN(place), "file:"), "?")
			if path, err := url.PathUnescape(name); err != nil || path != place || some || strings.Contains(name, "#") {
				t.Errorf("the file %q is opened as %q with parameters %q: %v", place, path, parameters, err)
			}
		case dialect == migrations.Postgres:
			if place != endpoint {
				t.Errorf("the connection string %q became %q", endpoint, place)
			}
		default:
			t.Errorf("dialect %q", dialect)
		}
	})
}

// If the connection of a migration breaks after any of its statements, before the answer
// arrives, the schema is either the old or the new one, and the next migration completes. The
// same holds if the process is killed.
func TestUp_BrokenAtAnyStatement(t *testing.T) {
	t.Parallel()
	d := postgresDatabase(t)
	latest, err := migrations.Latest(migrations.Postgres)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Up(t.Context(), d.endpoint); err != nil {
		t.Fatal(err)
	}
	want := d.query(t, postgresSchema)
	broken := 0
	for skip, isOver := 0, false; !isOver; skip++ {
		for state, err := migrations.Status(t.Context(),
			d.endpoint); state.Current > 1; state, err = migrations.Down(t.Context(), d.endpoint, false) {
			if err != nil {
				t.Fatal(err)
			}
		}
		proxy := pgtest.NewProxy(t, d.endpoint)
		triggered := proxy.Set(pgtest.Failpoint{Point: pgtest.Answered, Skip: skip, Do: func() pgtest.Action {
			return pgtest.Drop
		}})
		_, upErr := migrations.Up(t.Context(), proxy.DSN())
		select {
		case <-triggered:
			broken++
		default:
			if upErr != nil {
				t.Fatal(upErr)
			}
			isOver = true
		}
		state, err := migrations.Status(t.Context(), d.endpoint)
		if err != nil || state.Current != 1 && state.Current != latest {
			t.Fatalf("statement %d broke: %+v, %v", skip, state, err)
		}
		if state, err = migrations.Up(t.Context(), d.endpoint); err != nil || state.Current != latest {
			t.Fatalf("the next migration after statement %d: %+v, %v", skip, state, err)
		}
		if got := d.query(t, postgresSchema); !slices.Equal(got, want) {
			t.Fatalf("the schema after statement %d is %q, want %q", skip, got, want)
		}
	}
	if broken < 10 {
		t.Errorf("broken at %d points only", broken)
	}
	t.Logf("broken at %d points", broken)
}

// Down asks for consent before the first step only, which deletes all data: no other step deletes rows,
// in neither direction. One that has to needs a DeletesError of its own. The fourth step removes its columns, without
// which the past ends where watches do.
func TestSteps_OnlyTheFirstDeletesRows(t *testing.T) {
	t.Parallel()
	deletes := regexp.MustCompile(`(?i)\b(DELETE\s+FROM|TRUNCATE|DROP\s+(TABLE|COLUMN|SCHEMA))\b`)
	files, err := filepath.Glob("*/[0-9]*.sql")
	if err != nil || len(files) < 4 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		deletesNothing := !strings.HasSuffix(file, "/0001_store.down.sql") &&
			!strings.HasSuffix(file, "/0004_history.down.sql")
		if found := deletes.Find(text); (found == nil) != deletesNothing {
			t.Errorf("%s has %q", file, found)
		}
	}
}

// The values of a new database are compressed by lz4 where the server was built with it, also after all data
// was deleted.
func TestPostgres_CompressesValues(t *testing.T) {
	t.Parallel()
	db := postgresDatabase(t)
	want := db.query(t, `
SELECT t.name || CASE WHEN s.name IS NULL THEN ' ' ELSE ' l' END
FROM (VALUES ('current_objects'), ('undo_log')) t(name)
LEFT JOIN pg_settings s ON s.name = 'default_toast_compression' AND 'lz4' = ANY (s.enumvals) ORDER BY 1`)
	for range 2 {
		if _, err := migrations.Up(t.Context(), db.endpoint); err != nil {
			t.Fatal(err)
		}
		// PostgreSQL 13 has no column attcompression.
		got := db.query(t, `
SELECT c.relname || ' ' || coalesce(to_jsonb(a) ->> 'attcompression', '')
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND a.attname = 'value'
AND c.relname <> 'notes' ORDER BY 1`)
		if !slices.Equal(got, want) {
			t.Errorf("the columns are %q, want %q", got, want)
		}
		if _, err := migrations.Down(t.Context(), db.endpoint, true); err != nil {
			t.Fatal(err)
		}
	}
}
