package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// schemas is the number of control planes that share one database in
// TestSchemas_AreStoresOfTheirOwn.
const schemas = 20

// schemaDSN adds a schema to the endpoint. The sessions' application_name has the schema
// too.
func schemaDSN(t *testing.T, dsn, schema string) string {
	t.Helper()
	dsn, err := migrations.WithSchema(dsn+"&application_name="+strings.ReplaceAll(schema, " ", "%20"), schema)
	if err != nil {
		t.Fatal(err)
	}
	return dsn
}

// controlPlane is a store in one schema, with what a server runs on it.
type controlPlane struct {
	dsn    string
	driver *postgres.Driver
	store  *sqlstore.Store
	// hints receives the revisions that another process of the schema is notified of.
	hints chan int64
}

// startControlPlanes migrates schemas of one database and runs a store on each, all at the
// same time.
func startControlPlanes(t *testing.T, dsn string, names []string) []*controlPlane {
	t.Helper()
	planes := make([]*controlPlane, len(names))
	var starting, running sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		running.Wait()
		for _, p := range planes {
			if p != nil && p.driver != nil {
				p.driver.Close()
			}
		}
	})
	for i, name := range names {
		p := &controlPlane{dsn: schemaDSN(t, dsn, name), hints: make(chan int64, 1000)}
		planes[i] = p
		starting.Go(func() {
			if _, err := migrations.Up(ctx, p.dsn); err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			driver, err := postgres.Open(ctx, p.dsn, postgres.Options{})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			p.driver, p.store = driver, sqlstore.New(driver, sqlstore.Options{})
		})
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for _, p := range planes {
		running.Go(func() {
			if err := p.store.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		running.Go(func() {
			if err := p.driver.Listen(ctx, func(revision int64) { p.hints <- revision }); err != nil {
				t.Error(err)
			}
		})
		if got := <-p.hints; got != 0 {
			t.Fatalf("the first hint is %d", got)
		}
	}
	return planes
}

// connections returns the number of connections of each control plane.
func connections(ctx context.Context, conn *pgx.Conn) (counts map[string]int, err error) {
	rows, err := conn.Query(ctx, `
SELECT application_name, count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'tenant%' GROUP BY 1`)
	if err != nil {
		return nil, err
	}
	counts = map[string]int{}
	var name string
	var count int
	_, err = pgx.ForEachRow(rows, []any{&name, &count}, func() error {
		counts[name] = count
		return nil
	})
	return counts, err
}

// Many control planes share one database, with a schema each. Each has its own revisions,
// hints and locks, a bounded number of connections, and four connections when it is idle.
func TestSchemas_AreStoresOfTheirOwn(t *testing.T) {
	t.Parallel()
	pgtest.DSN(t) // skips the test where there is no PostgreSQL
	cluster, err := pgtest.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, cluster)
	dsn := cluster.DSN("postgres")
	all := make([]string, schemas)
	for i := range all {
		all[i] = fmt.Sprintf("tenant %d", i) // a name that needs quotation marks
	}
	admin := connect(t, dsn)
	for _, name := range all {
		useStore(t, admin, name) // a process that is alone sends no hints
	}
	planes := startControlPlanes(t, dsn+"&pool_max_conns=4", all)

	// Plane i creates i+1 objects with the names that the other planes use.
	var working sync.WaitGroup
	for i, p := range planes {
		working.Go(func() {
			var writes sync.WaitGroup
			for n := range i + 1 {
				writes.Go(func() {
					if _, err := p.store.Commit(t.Context(), create(fmt.Sprint(n))[0]); err != nil {
						t.Errorf("plane %d: %v", i, err)
					}
				})
				writes.Go(func() {
					if _, _, err := p.store.Get(t.Context(), create("0")[0].Key); err != nil && !errors.Is(err, sqlstore.ErrNotFound) {
						t.Errorf("plane %d: %v", i, err)
					}
				})
			}
			writes.Wait()
		})
	}
	working.Wait()
	busy, err := connections(t.Context(), admin)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range planes {
		state, err := p.driver.State(t.Context())
		if err != nil || state.Revision != int64(i+1) || len(names(t, p.driver)) != i+1 {
			t.Errorf("plane %d: %+v, %v", i, state, err)
		}
		if n := busy[all[i]]; n > 4+1+5+1 {
			t.Errorf("plane %d has %d connections", i, n)
		}
		for hint := int64(0); hint < state.Revision; {
			hint = <-p.hints
			if hint > state.Revision {
				t.Errorf("plane %d gets a hint of revision %d, which is another plane's", i, hint)
			}
		}
	}
	// A lock of one control plane does not lock another.
	ran, err := planes[0].driver.WithLock(t.Context(), "x", func(ctx context.Context) error {
		ran, err := planes[1].driver.WithLock(ctx, "x", func(context.Context) error { return nil })
		if !ran || err != nil {
			t.Errorf("the lock of another plane: %v, %v", ran, err)
		}
		return nil
	})
	if !ran || err != nil {
		t.Errorf("the lock: %v, %v", ran, err)
	}
	storetest.EventuallyDone(t, "each plane shares its in-use lock", func(ctx context.Context) (bool, error) {
		var shared int
		err := admin.QueryRow(ctx,
			`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted`).Scan(&shared)
		return shared == 2*len(all), err
	})
	var inUse *migrations.InUseError
	if _, err := migrations.Down(t.Context(), planes[0].dsn, false); !errors.As(err, &inUse) ||
		!strings.Contains(err.Error(), `"tenant 0"`) {
		t.Errorf("down of one in use: %v", err)
	}
	storetest.EventuallyDone(t, "four idle connections each", func(ctx context.Context) (bool, error) {
		counts, err := connections(ctx, admin)
		for _, name := range all {
			if err == nil && counts[name] > 4 {
				err = fmt.Errorf("%s has %d", name, counts[name])
			}
		}
		return err == nil && len(counts) == len(all), err
	})
}

// runProgram runs one of PostgreSQL's programs.
func runProgram(t *testing.T, stdin []byte, program string, args ...string) []byte {
	t.Helper()
	path, err := pgtest.Program(program)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v: %s", program, err, &errOut)
	}
	return out.Bytes()
}

// PostgreSQL's own tools dump, drop and restore one control plane. Others that are in use
// meanwhile are not affected.
func TestSchemas_AreDumpedDroppedAndRestoredAlone(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	planes := startControlPlanes(t, dsn, []string{"tenant a", "tenant b"})
	other := planes[1].store
	moved := schemaDSN(t, dsn, "tenant c")
	if _, err := migrations.Up(t.Context(), moved); err != nil {
		t.Fatal(err)
	}
	driver := openMore(t, moved, postgres.Options{})
	mustCreate(t, driver, "x", "y")
	before, err := driver.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	step := func(name string) {
		t.Helper()
		if _, err := other.Commit(t.Context(), create(name)[0]); err != nil {
			t.Errorf("the other control plane: %v", err)
		}
	}
	dump := runProgram(t, nil, "pg_dump", "--dbname="+dsn, "--schema=\"tenant c\"")
	step("dumped")
	admin := connect(t, dsn)
	if _, err := admin.Exec(t.Context(), `DROP SCHEMA "tenant c" CASCADE`); err != nil {
		t.Fatal(err)
	}
	step("dropped")
	if _, err := driver.State(t.Context()); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("a process of the dropped schema: %v", err)
	}
	if _, err := driver.Commit(t.Context(), create("z")); !errors.Is(err, sqlstore.ErrUnavailable) ||
		!strings.Contains(err.Error(), "byre migrate status") {
		t.Errorf("a commit to the dropped schema: %v", err)
	}
	runProgram(t, dump, "psql", "--dbname="+dsn, "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1")
	step("restored")
	// The dump is in tables of its own: the epoch that clients knew has ended.
	createAvailable(t, driver, "z")
	after, err := driver.State(t.Context())
	if err != nil || after.Compacted <= before.Revision || after.Revision != after.Compacted+1 ||
		after.Epoch == before.Epoch {
		t.Errorf("state after the restore: %+v, %v; before %+v", after, err, before)
	}
	if state, err := planes[1].driver.State(t.Context()); err != nil || state.Revision != 3 {
		t.Errorf("the other control plane: %+v, %v", state, err)
	}
}

// The views history and counters read the tables of their own schema, whatever the reader's
// search_path is.
func TestSchemas_ViewsReadTheirOwnTables(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	for _, schema := range []string{"public", "a"} {
		dsn := schemaDSN(t, dsn, schema)
		if _, err := migrations.Up(t.Context(), dsn); err != nil {
			t.Fatal(err)
		}
		mustCreate(t, openMore(t, dsn, postgres.Options{}), "in "+schema)
	}
	conn := connect(t, dsn) // its search_path leads to public
	for schema, want := range map[string]string{"public": "in public", "a": "in a"} {
		var name string
		var revision int64
		if err := conn.QueryRow(t.Context(), `SELECT name FROM `+schema+`.history`).Scan(&name); err != nil || name != want {
			t.Errorf("%s.history has %q, %v", schema, name, err)
		}
		if err := conn.QueryRow(t.Context(), `SELECT revision FROM `+schema+`.counters`).Scan(&revision); err != nil ||
			revision != 1 {
			t.Errorf("%s.counters has revision %d, %v", schema, revision, err)
		}
	}
}

// A role with the name of its schema needs no flag and cannot use any other schema.
func TestSchemas_RoleReachesItsOwnOnly(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	admin := connect(t, dsn)
	for _, role := range []string{"schema_one", "schema_two"} {
		for _, statement := range []string{`CREATE ROLE ` + role + ` LOGIN`,
			`CREATE SCHEMA ` + role + ` AUTHORIZATION ` + role} {
			if _, err := admin.Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() { // before the database is dropped: roles belong to the server
			if _, err := admin.Exec(context.Background(), `DROP OWNED BY `+role+` CASCADE; DROP ROLE `+role); err != nil {
				t.Error(err)
			}
		})
	}
	as := func(role string) string { return strings.Replace(dsn, "byre@", role+"@", 1) }
	for _, role := range []string{"schema_one", "schema_two"} {
		if _, err := migrations.Up(t.Context(), as(role)); err != nil {
			t.Fatal(err)
		}
		mustCreate(t, openMore(t, as(role), postgres.Options{}), "a")
	}
	if _, err := connect(t, as("schema_one")).Exec(t.Context(), `SELECT FROM schema_two.objects`); err == nil ||
		!strings.Contains(err.Error(), "permission denied") {
		t.Errorf("a role reads the schema of another: %v", err)
	}
	foreign, err := migrations.WithSchema(as("schema_one"), "schema_two")
	if err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func() error{
		"migrate": func() error { _, err := migrations.Up(t.Context(), foreign); return err },
		"open":    func() error { _, err := postgres.Open(t.Context(), foreign, postgres.Options{}); return err },
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), `grant USAGE on the schema to "schema_one"`) {
			t.Errorf("%s in the schema of another: %v", name, err)
		}
	}
	missing, err := migrations.WithSchema(as("schema_one"), "schema_three")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Up(t.Context(), missing); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("a schema that the role may not make: %v", err)
	}
}

// PgBouncer does not pass search_path on. byre refuses to work in another schema than the
// one that it was given. It works if the role or the pooler sets the schema.
func TestSchemas_BehindAPooler(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	expectRefused := func(dsn, want string) {
		t.Helper()
		named, err := migrations.WithSchema(dsn, "cp1")
		if err != nil {
			t.Fatal(err)
		}
		for name, do := range map[string]func() error{
			"migrate": func() error { _, err := migrations.Up(t.Context(), named); return err },
			"open":    func() error { _, err := postgres.Open(t.Context(), named, postgres.Options{}); return err },
			"read": func() error {
				return postgres.ReadSnapshot(t.Context(), named, func(sqlstore.Snapshot) error { return nil })
			},
		} {
			if err := do(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want %q", name, err, want)
			}
		}
	}
	expectWorks := func(dsn string) {
		t.Helper()
		if _, err := migrations.Up(t.Context(), dsn); err != nil {
			t.Fatal(err)
		}
		mustCreate(t, openMore(t, dsn, postgres.Options{}), "a")
	}
	admin := connect(t, dsn)
	if _, err := admin.Exec(t.Context(), `CREATE SCHEMA cp1; CREATE SCHEMA cp2`); err != nil {
		t.Fatal(err)
	}
	expectRefused(pgtest.NewPooler(t, dsn).DSN(), "the pooler takes no search_path")
	expectRefused(pgtest.PoolerConfig{Settings: "ignore_startup_parameters = search_path"}.New(t, dsn).DSN(),
		`sessions use the schema "public" instead of "cp1"`)

	expectWorks(pgtest.PoolerConfig{Database: `connect_query='SET search_path = cp1'`}.New(t, dsn).DSN())
	if _, err := admin.Exec(t.Context(),
		`ALTER ROLE byre IN DATABASE `+admin.Config().Database+` SET search_path = cp2`); err != nil {
		t.Fatal(err)
	}
	expectWorks(pgtest.NewPooler(t, dsn).DSN())
	for _, schema := range []string{"cp1", "cp2"} {
		var count int
		if err := admin.QueryRow(t.Context(), `SELECT count(*) FROM `+schema+`.objects`).Scan(&count); err != nil ||
			count != 1 {
			t.Errorf("%s has %d objects, %v", schema, count, err)
		}
	}
}

// A role that owns nothing and may only read and write rows can serve, as
// docs/operations/postgresql.md says.
func TestRole_NeedsNoOwnership(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	dsn = pgtest.FewRights(t, dsn)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Errorf("the schema is current: %v", err)
	}
	driver := openMore(t, dsn, postgres.Options{})
	last := mustCreate(t, driver, "a", "b")
	if o, err := driver.Commit(t.Context(), []sqlstore.Write{{
		Op: sqlstore.Delete, Replaces: last, Key: create("b")[0].Key,
	}}); err != nil || o[0].Err != nil {
		t.Fatal(o, err)
	}
	for _, c := range []struct {
		name string
		work func(context.Context) error
	}{
		{"Changes", func(ctx context.Context) error {
			_, err := driver.Changes(ctx, sqlstore.ChangesQuery{After: 0, Limit: 10})
			return err
		}},
		{"Usage", func(ctx context.Context) error { _, err := driver.Usage(ctx); return err }},
		{"Size", func(ctx context.Context) error { _, err := driver.Size(ctx); return err }},
		{"Notify", func(ctx context.Context) error { return driver.Notify(ctx, last) }},
		// This is the last one: Changes cannot read what it compacts.
		{"WithLock", func(ctx context.Context) error {
			_, err := driver.WithLock(ctx, "x", func(ctx context.Context) error {
				_, _, err := driver.DeleteHistory(ctx, sqlstore.Deletion{Of: create("b")[0].Key.Of(), UpTo: last, Limit: 1})
				return err
			})
			return err
		}},
	} {
		if err := c.work(t.Context()); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
