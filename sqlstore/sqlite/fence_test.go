package sqlite_test

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/sqlite"
)

// fence fails from a call on.
type fence struct{ calls, last int }

var errFenced = errors.New("another one serves")

func (f *fence) check() error {
	if f.calls++; f.calls > f.last {
		return errFenced
	}
	return nil
}

func podWrite(name string) []sqlstore.Write {
	return []sqlstore.Write{{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: name}, Value: []byte(`{}`)}}
}

// TestFence_AcknowledgesNothing: a commit whose answer comes too late may be lost elsewhere; none is begun
// afterwards, and nothing claims to be current.
func TestFence_AcknowledgesNothing(t *testing.T) {
	t.Parallel()
	for name, volatile := range map[string]func(sqlstore.Key) bool{
		"durable": nil, "volatile": func(sqlstore.Key) bool { return true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fence{last: 1 << 30}
			d, err := sqlite.Open(t.Context(), migrated(t), sqlite.Options{Fence: f.check, Volatile: volatile})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if outcomes, err := d.Commit(t.Context(), podWrite("a")); err != nil || outcomes[0].Err != nil {
				t.Fatal(err, outcomes)
			}
			f.last = f.calls + 1 // it passes before the commit, and fails after
			if _, err := d.Commit(t.Context(), podWrite("b")); !errors.Is(err, sqlstore.ErrUnknown) || errors.Is(err, sqlstore.ErrUnavailable) {
				t.Errorf("a commit during which it begins to fail: %v", err)
			}
			if _, err := d.Commit(t.Context(), podWrite("c")); !errors.Is(err, sqlstore.ErrUnavailable) {
				t.Errorf("the next commit: %v", err)
			}
			if _, _, err := d.Get(t.Context(), podWrite("c")[0].Key); !errors.Is(err, sqlstore.ErrNotFound) {
				t.Errorf("it was made: %v", err)
			}
			if _, err := d.State(t.Context()); !errors.Is(err, sqlstore.ErrUnavailable) {
				t.Errorf("State: %v", err)
			}
		})
	}
}

func vacuumInto(t *testing.T, path, copied string) {
	t.Helper()
	db, err := sql.Open("sqlite", migrations.SQLiteDSN(path))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), `VACUUM INTO ?`, copied); err != nil {
		t.Fatal(err)
	}
}

// TestReplace_KeepsWhatTheCopyLacks replaces a database by copies of it that were made before and after its
// last change.
func TestReplace_KeepsWhatTheCopyLacks(t *testing.T) {
	t.Parallel()
	path := migrated(t)
	var epochs []string
	for i, name := range []string{"before", "after"} {
		d, err := sqlite.Open(t.Context(), path, sqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		commit := func(name string) {
			if outcomes, err := d.Commit(t.Context(), podWrite(name)); err != nil || outcomes[0].Err != nil {
				t.Fatal(err, outcomes)
			}
		}
		commit(name)
		copied := path + ".copy"
		if name == "before" {
			vacuumInto(t, path, copied)
		}
		commit(name + "-last")
		if name == "after" {
			vacuumInto(t, path, copied)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		kept, err := sqlite.Replace(t.Context(), path, copied, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
		if err != nil || (kept == path+".diverged-20260102T030405Z") != (name == "before") || (kept == "") != (name == "after") {
			t.Errorf("%s: kept %q, %v", name, kept, err)
		}
		if kept != "" {
			old, err := sqlite.Open(t.Context(), kept, sqlite.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := old.Get(t.Context(), podWrite("before-last")[0].Key); err != nil {
				t.Errorf("what was kept does not have its last change: %v", err)
			}
			old.Close()
		}
		d, err = sqlite.Open(t.Context(), path, sqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		state, err := d.State(t.Context())
		if err != nil || state.Compacted != state.Revision || state.Revision < int64(i+1)*1_000_000 {
			t.Errorf("%s: %+v, %v; want a new epoch", name, state, err)
		}
		epochs = append(epochs, state.Epoch)
		d.Close()
	}
	if epochs[0] == epochs[1] {
		t.Error("two epochs are the same")
	}
}
