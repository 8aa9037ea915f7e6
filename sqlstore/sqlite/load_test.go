package sqlite_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

// A file that a load takes the place of hands on its mode, and what a load that was
// killed has left is deleted.
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
