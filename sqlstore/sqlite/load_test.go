package sqlite_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"byre/sqlstore"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

// Load keeps the mode of the file that it replaces, and deletes the files of a Load that was
// killed.
func TestLoad_LeavesOneFile(t *testing.T) {
	path := migrated(t)
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "-wal", "-shm", "-journal", ".lock"} {
		if err := os.WriteFile(path+".loading"+suffix, []byte("half a load"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rows := storetest.RandomRows(t, rand.New(rand.NewPCG(1, 2)))
	if err := sqlite.Load(t.Context(), path, rows.Snapshot()); err != nil {
		t.Fatal(err)
	}
	if file, err := os.Stat(path); err != nil || file.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", file.Mode(), err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if name := entry.Name(); name != "byre.db" && name != "byre.db.lock" {
			t.Errorf("%s is left", name)
		}
	}
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	driver.Close()
}

// ReadIdle refuses a store that may have lost commits, whose process crashed with volatile changes
// for example: a server on a copy would give their revisions again.
func TestReadIdle_RefusesWhatMayHaveLostCommits(t *testing.T) {
	path := migrated(t)
	ignore := func(sqlstore.Snapshot) error { return nil }
	if err := sqlite.ReadIdle(t.Context(), path, ignore); err != nil {
		t.Errorf("before the first start: %v", err)
	}
	driver := openVolatile(t, path, isLease)
	crashed := copyOpenFiles(t, path)
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
	if err := sqlite.ReadIdle(t.Context(), path, ignore); err != nil {
		t.Errorf("after a stop: %v", err)
	}
	path = crashed
	if err := sqlite.ReadIdle(t.Context(), path, ignore); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("reserved revisions: %v", err)
	}
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	driver.Close()
	if err := sqlite.ReadIdle(t.Context(), path, ignore); err != nil {
		t.Errorf("after a start: %v", err)
	}
}
