package sqlite_test

import (
	"database/sql"
	"errors"
	"os"
	"testing"

	"byre/migrations"
	"byre/sqlstore"
)

// State is answered from memory. A Probe reads the file and notices if it was deleted or
// replaced.
func TestProbe_NoticesALostFile(t *testing.T) {
	t.Parallel()
	overwrite := func(t *testing.T, path string) {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			t.Fatal(err)
		}
	}
	for name, damage := range map[string]func(*testing.T, string){
		"none": nil,
		"removed": func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		},
		"replaced": func(t *testing.T, path string) {
			data, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path+".copy", data, 0o600)
			}
			if err == nil {
				err = os.Rename(path+".copy", path)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		"overwritten": overwrite,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver, path := open(t)
			defer driver.Close()
			outcomes, err := driver.Commit(t.Context(), []sqlstore.Write{{
				Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: "x"}, Value: []byte(`{}`),
			}})
			if err != nil || outcomes[0].Err != nil {
				t.Fatal(err, outcomes)
			}
			checkpoint(t, path)
			if err := driver.Probe(t.Context()); err != nil {
				t.Fatalf("an undamaged file: %v", err)
			}
			if damage == nil {
				return
			}
			damage(t, path)
			if _, err := driver.State(t.Context()); err != nil {
				t.Fatalf("state: %v", err)
			}
			if err := driver.Probe(t.Context()); err == nil {
				t.Error("nothing is noticed")
			} else if name != "overwritten" && !errors.Is(err, sqlstore.ErrUnavailable) {
				t.Error(err)
			}
		})
	}
}

// checkpoint copies the log back into the file, so that reads use the file.
func checkpoint(t *testing.T, path string) {
	t.Helper()
	db, err := sql.Open("sqlite", migrations.SQLiteDSN(path))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), `PRAGMA wal_checkpoint(TRUNCATE)`); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkProbe(b *testing.B) {
	driver, _ := open(b)
	defer driver.Close()
	for b.Loop() {
		if err := driver.Probe(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
