package sqlite_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
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

// TestLastBackup_IsNotOfADatabaseBefore: a record that lies beside a new database, or beside one
// that is loaded, is of the database that was there before.
func TestLastBackup_IsNotOfADatabaseBefore(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(path string) error{
		"a new one": func(path string) error {
			if _, err := migrations.Up(t.Context(), "sqlite://"+path); err != nil {
				return err
			}
			driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
			if err != nil {
				return err
			}
			return driver.Close()
		},
		"one that is loaded": func(path string) error {
			return sqlite.Load(t.Context(), path, storetest.RandomRows(t, rand.New(rand.NewPCG(1, 1))).Snapshot())
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "byre.db")
			recorded := sqlstore.LastBackup{Time: time.Unix(1_700_000_000, 0).UTC(), Revision: 7, Location: "/backup/byre.zst"}
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := sqlite.RecordBackup(path, recorded); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := begin(path); err != nil {
				t.Fatal(err)
			}
			if last, err := sqlite.ReadLastBackup(path); !errors.Is(err, sqlstore.ErrNotFound) {
				t.Errorf("the last backup is %+v, %v", last, err)
			}
		})
	}
}
