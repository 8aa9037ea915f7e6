package sqlite_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/sqlite"
)

// TestLastBackup_BySymbolicLink: the record of the last backup belongs to the database file,
// by whatever name the file is given to RecordBackup and ReadLastBackup.
func TestLastBackup_BySymbolicLink(t *testing.T) {
	t.Parallel()
	driver, path := open(t)
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	recorded := sqlstore.LastBackup{Time: time.Unix(1_700_000_000, 0).UTC(), Revision: 7, Location: "/backup/byre.zst"}
	if err := sqlite.RecordBackup(link, recorded); err != nil {
		t.Fatal(err)
	}
	for name, read := range map[string]func() (sqlstore.LastBackup, error){
		"the file":       func() (sqlstore.LastBackup, error) { return sqlite.ReadLastBackup(path) },
		"the link":       func() (sqlstore.LastBackup, error) { return sqlite.ReadLastBackup(link) },
		"the open store": func() (sqlstore.LastBackup, error) { return driver.LastBackup(t.Context()) },
	} {
		if got, err := read(); err != nil || got != recorded {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
