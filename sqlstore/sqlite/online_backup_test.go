package sqlite_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	engine "modernc.org/sqlite"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/sqlite"
)

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
