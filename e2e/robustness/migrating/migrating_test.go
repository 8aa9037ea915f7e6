package migrating

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"byre/e2e/document"
	"byre/e2e/robustness/vfs"
	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/sqlite"
)

var docs = flag.String("docs", "", "write the table into reliability.md of this folder")

var step = flag.Int("step", 9, "kill each migration at each so many-th point of it")

// The tests run this program again as the process that is killed. role is the environment
// variable for "up" or "down", place that for the database.
const (
	role  = "BYRE_MIGRATE"
	place = "BYRE_ENDPOINT"
	// power is how many changes of files pass before it fails, and whether what was not
	// synced is lost then.
	power = "BYRE_POWER_FAILS_AFTER"
	loses = "BYRE_LOSES_UNSYNCED"
)

func TestMain(m *testing.M) {
	if os.Getenv(role) == "" {
		flag.Parse()
		status := m.Run()
		if err := kills.save(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
		os.Exit(status)
	}
	if err := migrate(context.Background(), os.Getenv(role), os.Getenv(place)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// migrate moves the schema to the latest version, or to the first.
func migrate(ctx context.Context, direction, endpoint string) error {
	if after := os.Getenv(power); after != "" {
		n, err := strconv.ParseInt(after, 10, 64)
		if err != nil {
			return err
		}
		if os.Getenv(loses) != "" {
			vfs.LoseUnsynced()
		}
		vfs.FailPowerAfter(n)
		if err := vfs.Register(); err != nil {
			return err
		}
	}
	if direction == "up" {
		_, err := migrations.Up(ctx, endpoint)
		return err
	}
	state, err := migrations.Status(ctx, endpoint)
	for err == nil && state.Current > 1 {
		state, err = migrations.Down(ctx, endpoint, false)
	}
	return err
}

// killed runs a migration in a process that may be killed: by do, which gets a function that
// kills it, or by itself. It reports whether the process was killed.
func killed(t *testing.T, direction, endpoint string, do func(kill func()), env ...string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), append(env, role+"="+direction, place+"="+endpoint)...)
	var said strings.Builder
	cmd.Stderr = &said
	if do != nil {
		do(func() { _ = cmd.Process.Kill() }) // or it has ended
	}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return false
	case ctx.Err() == nil && errors.As(err, &exit) && !exit.Exited():
		return true
	}
	t.Fatal(err, said.String())
	return false
}

// contents are what a migrated database has: the schema and a digest of all rows.
type contents struct {
	schema []string
	rows   backup.Digest
}

func (c contents) equal(other contents) bool {
	return slices.Equal(c.schema, other.schema) && c.rows == other.rows
}

// report is the table of docs/reliability.md.
type report struct {
	mu   sync.Mutex
	rows []string
}

var kills report

func (r *report) add(kind, direction, how string, times int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = append(r.rows, fmt.Sprintf("| %s | %s | %s | %d | all |\n", kind, direction, how, times))
}

func (r *report) save() error {
	if *docs == "" {
		return nil
	}
	slices.Sort(r.rows)
	table := "| database | migration | how it ended | times | kept |\n|---|---|---|---:|---|\n" + strings.Join(r.rows, "")
	return document.Update(filepath.Join(*docs, "reliability.md"), "robustness", map[string]string{"migrations": table})
}

// database is one that is killed while it migrates.
type database struct {
	kind, endpoint string
	how            string
	schema         func() []string
	rows           func() backup.Digest
	// run runs a migration that is killed at the n-th point, and reports whether it was
	// killed: a migration with fewer points ends by itself.
	run func(direction string, n int) bool
}

func (d database) contents() contents { return contents{d.schema(), d.rows()} }

// fill writes some objects with a history, of every kind of change.
func fill(t *testing.T, driver sqlstore.Driver) {
	t.Helper()
	for i := range 40 {
		key := sqlstore.Key{Resource: "configmaps", Namespace: "n", Name: fmt.Sprintf("object-%d", i)}
		value := fmt.Appendf(nil, `{"n":%d,"filler":%q}`, i, strings.Repeat("x", 300))
		commit := func(w sqlstore.Write) int64 {
			outcomes, err := driver.Commit(t.Context(), []sqlstore.Write{w})
			if err != nil || outcomes[0].Err != nil {
				t.Fatal(err, outcomes)
			}
			return outcomes[0].Revision
		}
		at := commit(sqlstore.Write{Op: sqlstore.Create, Key: key, UID: "u", Encoding: "v1.37/v1", Value: value})
		if i%2 == 0 {
			at = commit(sqlstore.Write{Op: sqlstore.Update, Key: key, UID: "u", Encoding: "v1.37/v1", Value: []byte(`{}`),
				Replaces: at})
		}
		if i%5 == 0 {
			commit(sqlstore.Write{Op: sqlstore.Delete, Key: key, Replaces: at})
		}
	}
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
}

// killAtEachPoint kills a migration up, and one down, at each of its points. The schema must
// then be one of the versions on the way, and the next migration must end with the same
// contents as one that was not interrupted.
func killAtEachPoint(t *testing.T, d database) {
	t.Helper()
	up := func() migrations.State {
		state, err := migrations.Up(t.Context(), d.endpoint)
		if err != nil || state.Current != state.Latest {
			t.Fatalf("up: %+v, %v", state, err)
		}
		return state
	}
	want, latest := d.contents(), up().Latest
	if want.rows.Objects == 0 || want.rows.Changes == 0 {
		t.Fatalf("nothing to lose: %v", want.rows)
	}
	if latest == 1 {
		return // there is no migration between versions yet; the creation of a database has tests of its own
	}
	for _, direction := range []string{"down", "up"} {
		kill := func(n int) bool {
			if direction == "up" {
				if err := migrate(t.Context(), "down", d.endpoint); err != nil {
					t.Fatal(err)
				}
			}
			isKilled := d.run(direction, n)
			state, err := migrations.Status(t.Context(), d.endpoint)
			if err != nil || state.Current < 1 || state.Current > latest {
				t.Fatalf("%s, killed at point %d: %+v, %v", direction, n, state, err)
			}
			up()
			if got := d.contents(); !got.equal(want) {
				t.Fatalf("%s, killed at point %d: %+v, want %+v", direction, n, got, want)
			}
			return isKilled
		}
		n := 0
		for kill(n) {
			n += *step
		}
		if n < 10 {
			t.Errorf("%s has %d points only", direction, n)
		}
		t.Logf("%s has about %d points; killed at each %d", direction, n, *step)
		kills.add(d.kind, direction, d.how, n / *step)
	}
}

func TestSQLite_MigrationMayBeKilled(t *testing.T) {
	t.Parallel()
	for name, env := range map[string][]string{"kill -9": nil, "power failure": {loses + "=1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "byre.db")
			d := sqliteDatabase(t, path, name, env)
			if _, err := migrations.Up(t.Context(), d.endpoint); err != nil {
				t.Fatal(err)
			}
			driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
			if err != nil {
				t.Fatal(err)
			}
			fill(t, driver)
			killAtEachPoint(t, d)
		})
	}
}

func sqliteDatabase(t *testing.T, path, name string, env []string) database {
	endpoint := "sqlite://" + path
	return database{
		kind: "sqlite", endpoint: endpoint, how: name + " before a change of a file",
		schema: func() []string { return sqliteSchema(t, path) },
		rows: func() (d backup.Digest) {
			if err := sqlite.ReadSnapshot(t.Context(), path, digestInto(&d)); err != nil {
				t.Fatal(err)
			}
			return d
		},
		run: func(direction string, n int) bool {
			return killed(t, direction, endpoint, nil, append(env, fmt.Sprintf("%s=%d", power, n))...)
		},
	}
}

// digestInto returns a function that sets d to the digest of a snapshot.
func digestInto(d *backup.Digest) func(sqlstore.Snapshot) error {
	return func(s sqlstore.Snapshot) (err error) {
		*d, err = backup.DigestOf(s)
		return err
	}
}

// TestSQLite_CreationMayBeKilled: the next migration completes a database whose
// creation was interrupted.
func TestSQLite_CreationMayBeKilled(t *testing.T) {
	t.Parallel()
	for name, env := range map[string][]string{"kill -9": nil, "power failure": {loses + "=1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reference := filepath.Join(t.TempDir(), "byre.db")
			if _, err := migrations.Up(t.Context(), "sqlite://"+reference); err != nil {
				t.Fatal(err)
			}
			want := sqliteSchema(t, reference)
			for n := 0; ; n += max(1, *step/3) {
				path := filepath.Join(t.TempDir(), "byre.db")
				isKilled := sqliteDatabase(t, path, name, env).run("up", n)
				if state, err := migrations.Up(t.Context(), "sqlite://"+path); err != nil || state.Current != state.Latest {
					t.Fatalf("killed at point %d: %+v, %v", n, state, err)
				}
				if got := sqliteSchema(t, path); !slices.Equal(got, want) {
					t.Fatalf("killed at point %d: the schema is %q, want %q", n, got, want)
				}
				if !isKilled {
					t.Logf("about %d points", n)
					kills.add("sqlite", "of a new database", name+" before a change of a file", n/max(1, *step/3))
					return
				}
			}
		})
	}
}

func TestPostgres_MigrationMayBeKilled(t *testing.T) {
	t.Parallel()
	for name, point := range map[string]pgtest.Point{"before a statement arrives": pgtest.Sent,
		"before its answer arrives": pgtest.Answered} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.DSN(t)
			if _, err := migrations.Up(t.Context(), dsn); err != nil {
				t.Fatal(err)
			}
			driver, err := postgres.Open(t.Context(), dsn, postgres.Options{})
			if err != nil {
				t.Fatal(err)
			}
			fill(t, driver)
			killAtEachPoint(t, database{
				kind: "postgres", endpoint: dsn, how: "kill -9 " + name,
				schema: func() []string { return postgresSchema(t, dsn) },
				rows: func() (d backup.Digest) {
					if err := postgres.ReadSnapshot(t.Context(), dsn, digestInto(&d)); err != nil {
						t.Fatal(err)
					}
					return d
				},
				run: func(direction string, n int) bool {
					proxy := pgtest.NewProxy(t, dsn)
					return killed(t, direction, proxy.DSN(), func(kill func()) {
						proxy.Set(pgtest.Failpoint{Point: point, Skip: n, Do: func() pgtest.Action {
							kill()
							return pgtest.Drop
						}})
					})
				},
			})
		})
	}
}
