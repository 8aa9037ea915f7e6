package main

import (
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"byre/migrations"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
	return string(out)
}

// The copy that a database's own tool makes is a whole store; restore turns it into one
// that clients can continue with.
func TestRestore_FromCopiesOfTheDatabasesTools(t *testing.T) {
	t.Parallel()
	rows := storetest.RandomRows(t, rand.New(rand.NewPCG(13, 13)))
	first := sqliteWith(t, rows)
	path := strings.TrimPrefix(first, "sqlite://")
	dir := t.TempDir()
	// byre has the file open while the tool copies it.
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tool(t, "sqlite3", path, "VACUUM INTO '"+filepath.Join(dir, "vacuumed.db")+"'")
	tool(t, "sqlite3", path, ".backup '"+filepath.Join(dir, "backup.db")+"'")
	driver.Close()

	dumped, restored := pgtest.DSN(t), pgtest.DSN(t)
	succeed(t, "copy", "--from", first, "--to", dumped)
	dump, err := pgtest.Program("pg_dump")
	if err != nil {
		t.Fatal(err)
	}
	restore, err := pgtest.Program("pg_restore")
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "byre.dump")
	tool(t, dump, "--format=custom", "--file", archive, dumped)
	tool(t, restore, "--no-owner", "--exit-on-error", "--dbname", restored, archive)

	want, wantHeader := digestOf(t, first)
	for _, endpoint := range []string{"sqlite://" + filepath.Join(dir, "vacuumed.db"), "sqlite://" + filepath.Join(dir, "backup.db"), restored} {
		if got, header := digestOf(t, endpoint); got != want || !reflect.DeepEqual(header, wantHeader) {
			t.Errorf("%s: %v, %+v; want %v, %+v", endpoint, got, header, want, wantHeader)
		}
		if state, err := migrations.Status(t.Context(), endpoint); err != nil || state.Current != state.Latest {
			t.Errorf("%s: schema %+v, %v", endpoint, state, err)
		}
		target := "sqlite://" + filepath.Join(t.TempDir(), "byre.db")
		succeed(t, "restore", "--endpoint", target, "--from", endpoint)
		if got, header := digestOf(t, target); got != restoredDigest(t, rows.Snapshot()) || header.Revision != rows.Revision+bumpRevision {
			t.Errorf("restored from %s: %v, %+v", endpoint, got, header)
		}
	}
}
