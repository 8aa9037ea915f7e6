package sqlite_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	engine "modernc.org/sqlite"

	"byre/migrations"
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

// SQLite's online backup copies a store while the driver writes to it. (The shell's ".backup"
// uses it, in steps of 100 pages.) A copy in one step has the revision at which it began. A
// copy in several steps starts over after each write, and has the last revision.
func TestOnlineBackup_CopiesOneRevision(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pages int32
		want  func(before, last int64) int64
	}{
		"in one step":  {-1, func(before, _ int64) int64 { return before }},
		"page by page": {1, func(_, last int64) int64 { return last }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver, path := open(t)
			defer driver.Close()
			for i := range 50 {
				if err := commits(t, driver, fmt.Sprint("before-", i), 10_000); err != nil {
					t.Fatal(err)
				}
			}
			before := revisionOf(t, driver)
			copied := filepath.Join(t.TempDir(), "copy.db")
			i := 0
			onlineBackup(t, path, copied, c.pages, func() {
				if i++; i > 20 {
					return
				}
				if err := commits(t, driver, fmt.Sprint("meanwhile-", i), 10_000); err != nil {
					t.Error(err)
				}
			})
			last := revisionOf(t, driver)
			if err := commits(t, driver, "after", 10_000); err != nil {
				t.Fatal(err)
			}

			want := c.want(before, last)
			if err := sqlite.ReadSnapshot(t.Context(), copied, func(s sqlstore.Snapshot) error {
				changes := int64(0)
				for _, err := range s.Changes {
					if err != nil {
						return err
					}
					changes++
				}
				if s.Revision != want || changes != want {
					t.Errorf("the copy is at revision %d with %d changes, want %d", s.Revision, changes, want)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

func revisionOf(t *testing.T, driver sqlstore.Driver) int64 {
	t.Helper()
	state, err := driver.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return state.Revision
}

// onlineBackup copies the file by SQLite's online backup, some pages in each step, as another
// program would. It calls meanwhile after each step but the last.
func onlineBackup(t *testing.T, path, copied string, pages int32, meanwhile func()) {
	t.Helper()
	err := foreign(t, path).Raw(func(source any) error {
		backup, err := source.(interface {
			NewBackup(destination string) (*engine.Backup, error)
		}).NewBackup(migrations.SQLiteDSN(copied))
		if err != nil {
			return err
		}
		for more := true; more && err == nil; {
			if more, err = backup.Step(pages); more {
				meanwhile()
			}
		}
		return errors.Join(err, backup.Finish())
	})
	if err != nil {
		t.Fatal(err)
	}
}
