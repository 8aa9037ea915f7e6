package main

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"byre/cmd/byre/client"
	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

// sqliteWith creates a SQLite database with the rows.
func sqliteWith(t *testing.T, rows storetest.Rows) (endpoint string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "byre.db")
	if err := sqlite.Load(t.Context(), path, rows.Snapshot()); err != nil {
		t.Fatal(err)
	}
	return "sqlite://" + path
}

func digestOf(t *testing.T, endpoint string) (digest backup.Digest, header sqlstore.Header) {
	t.Helper()
	err := readDatabase(t.Context(), endpoint, func(s sqlstore.Snapshot) (err error) {
		header = s.Header
		header.Time = time.Time{}
		digest, err = backup.DigestOf(s)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return digest, header
}

// expectFailure runs a command that must fail with a one-line error.
func expectFailure(t *testing.T, want string, args ...string) {
	t.Helper()
	status, out, errOut := call(args...)
	if status == 0 || out != "" || strings.Count(errOut, "\n") != 1 || !strings.Contains(errOut, want) {
		t.Errorf("%q: status %d, %q, %q; want %q", args, status, out, errOut, want)
	}
}

func TestCopy_BetweenDatabasesAndBack(t *testing.T) {
	t.Parallel()
	rows := storetest.RandomRows(t, rand.New(rand.NewPCG(4, 4)))
	first, second := sqliteWith(t, rows), pgtest.DSN(t)
	third := "sqlite://" + filepath.Join(t.TempDir(), "new", "byre.db")
	want, wantHeader := digestOf(t, first)
	for _, step := range [][2]string{{first, second}, {second, third}} {
		status, out, errOut := call("copy", "--from", step[0], "--to", step[1])
		if status != 0 || errOut != "" || !strings.Contains(out, "copied and verified "+want.String()) {
			t.Fatalf("status %d, %q, %q", status, out, errOut)
		}
		if got, header := digestOf(t, step[1]); got != want || !reflect.DeepEqual(header, wantHeader) {
			t.Fatalf("copied %v, %+v; want %v, %+v", got, header, want, wantHeader)
		}
	}
	expectFailure(t, "holds data", "copy", "--from", first, "--to", second)
	expectFailure(t, "holds data", "copy", "--from", second, "--to", first)
	expectFailure(t, "holds data", "copy", "--from", third, "--to", first)
	expectFailure(t, "there is no database in /nowhere/byre.db", "copy", "--from", "sqlite:///nowhere/byre.db", "--to",
		first)
	expectFailure(t, "endpoint", "copy", "--from", "redis://x", "--to", first)
}

// A copy of a database in use is refused: clients may see revisions that the copy does not
// have. It is not migrated down either.
func TestDatabase_InUseIsNotCopiedAndNotMigratedDown(t *testing.T) {
	t.Parallel()
	onSharedServers(t, func(t *testing.T, s *sharedByre) {
		if !strings.HasPrefix(s.endpoint, "sqlite:") {
			awaitShared(t, s.endpoint)
		}
		target := filepath.Join(t.TempDir(), "byre.db")
		expectFailure(t, "in use by another byre process", "copy", "--from", s.endpoint, "--to", "sqlite://"+target)
		expectFailure(t, "byre restore --from", "copy", "--from", s.endpoint, "--to", "sqlite://"+target)
		expectFailure(t, "in use by another byre process", "copy", "--to", s.endpoint,
			"--from", sqliteWith(t, storetest.RandomRows(t, rand.New(rand.NewPCG(5, 5)))))
		expectFailure(t, "is in use by another byre process", "migrate", "down", "--yes-delete-all-data", "--endpoint",
			s.endpoint)
	})
}

// A command of less than two seconds prints no progress; a longer one prints how many rows
// it has copied.
func TestProgress_AfterTwoSeconds(t *testing.T) {
	rows := storetest.RandomRows(t, rand.New(rand.NewPCG(6, 6)))
	for _, step := range []time.Duration{0, 100 * time.Millisecond} {
		var out bytes.Buffer
		p := newProgress(&out, "copying")
		now := p.start
		p.clock = func() time.Time {
			now = now.Add(step)
			return now
		}
		if _, err := backup.DigestOf(p.follow(rows.Snapshot())); err != nil {
			t.Fatal(err)
		}
		p.end()
		lines := strings.Count(out.String(), "\n")
		if step == 0 && lines > 0 || step > 0 &&
			(lines < 1 || !strings.HasPrefix(out.String(), "copying [") || !strings.Contains(out.String(), "%, ")) {
			t.Errorf("with %v a row: %q", step, out.String())
		}
	}
}

// slowMigration takes three seconds for the lock, and for each of two steps.
func slowMigration(onStep func(migrations.Step)) (migrations.State, error) {
	time.Sleep(3 * time.Second)
	for number := range migrations.Version(2) {
		onStep(migrations.Step{Number: 1 + number, Latest: 2})
		time.Sleep(10 * time.Second)
	}
	return migrations.State{}, nil
}

func quickMigration(func(migrations.Step)) (migrations.State, error) { return migrations.State{}, nil }

// A migration of more than two seconds tells its steps, on standard error of a command and in the
// log of a server; a shorter one tells nothing.
func TestProgress_OfAMigration(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out, log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		for _, quick := range []bool{true, false} {
			migrate := slowMigration
			if quick {
				migrate = quickMigration
			}
			if _, err := showSteps(newProgress(&out, ""), migrate); err != nil {
				t.Error(err)
			}
			if _, err := logSteps(logger, migrate); err != nil {
				t.Error(err)
			}
			if quick && out.Len()+log.Len() > 0 {
				t.Errorf("a migration of no time tells %s%s", &out, &log)
			}
		}
		if want := waitingToMigrate +
			", 2 s\nstep 1 of 2 of the schema, 12 s\nstep 2 of 2 of the schema, 22 s\n"; out.String() != want {
			t.Errorf("the command prints\n%swant\n%s", &out, want)
		}
		lines := strings.SplitAfter(log.String(), "\n")
		for i, want := range []string{
			`msg="store: ` + waitingToMigrate + `" elapsed=2s`,
			`msg="store: migrating the schema" step=1 latest=2 elapsed=12s`,
			`msg="store: migrating the schema" step=2 latest=2 elapsed=22s`,
		} {
			if len(lines) != 4 || !strings.Contains(lines[i], want) {
				t.Errorf("line %d of the server's log is not %s:\n%s", i, want, &log)
			}
		}
	})
}

// A server and a command that wait for the migration of another process say so, and go on when
// that has ended.
func TestProgress_WhileAnotherProcessMigrates(t *testing.T) {
	t.Parallel()
	dsn, dir := pgtest.DSN(t), t.TempDir()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	// A migration of another process holds this lock.
	if _, err := conn.Exec(t.Context(),
		"SELECT pg_advisory_lock(hashtextextended('byre migration public', 0))"); err != nil {
		t.Fatal(err)
	}
	server := command(t, dir, serveArgs(dir, "--endpoint", dsn)...)
	migration := command(t, dir, "migrate", "up", "--endpoint", dsn)
	for _, p := range []*serverProcess{server, migration} {
		storetest.Eventually(t, "it tells that it waits", func() bool {
			p.mustRun(t)
			return strings.Contains(p.log.String(), waitingToMigrate)
		})
	}
	if _, err := conn.Exec(t.Context(), "SELECT pg_advisory_unlock_all()"); err != nil {
		t.Fatal(err)
	}
	if status := migration.wait(t); status != 0 {
		t.Errorf("byre migrate up: %d", status)
	}
	awaitReady(t, server)
}

// byre check tells that it checks the file of SQLite, before it reads the first row.
func TestProgress_OfACheckOfTheFile(t *testing.T) {
	t.Parallel()
	endpoint := sqliteWith(t, storetest.RandomRows(t, rand.New(rand.NewPCG(7, 7))))
	var out, errOut bytes.Buffer
	cmd := newCheckCommand()
	cmd.SetContext(t.Context())
	cmd.SetOut(&out)
	p := newProgress(&errOut, "checking")
	p.start = p.start.Add(-time.Hour)
	// The rows are random bytes, which the check finds.
	_ = check(cmd, p, endpoint, nil, false, client.Output{Format: "text"})
	if want := "checking the pages of the file, 3600 s\n"; !strings.HasPrefix(errOut.String(), want) {
		t.Errorf("it prints %q, want %q; %s", &errOut, want, &out)
	}
}
