package main

import (
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

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
	expectFailure(t, "there is no database in /nowhere/byre.db", "copy", "--from", "sqlite:///nowhere/byre.db", "--to", first)
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
		expectFailure(t, "is in use by another byre process", "migrate", "down", "--yes-delete-all-data", "--endpoint", s.endpoint)
	})
}
