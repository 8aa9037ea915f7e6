package sqlite_test

import (
	"os"
	"path/filepath"
	"testing"

	"byre/sqlstore"
	"byre/sqlstore/sqlite"
)

// TestReadPosition_TellsWhoHasWrittenLast opens a database by processes of several names. A new name begins no epoch; a fork
// of the history does. What is restored stands for what was there.
func TestReadPosition_TellsWhoHasWrittenLast(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "byre.db")
	expect := func(lineage string, revision int64) {
		t.Helper()
		before, _ := filepath.Glob(path + "*")
		gotLineage, gotRevision, err := sqlite.ReadPosition(t.Context(), path, false)
		if err != nil || gotLineage != lineage || gotRevision != revision {
			t.Errorf("%s at %d, %v; want %s at %d", gotLineage, gotRevision, err, lineage, revision)
		}
		if after, _ := filepath.Glob(path + "*"); len(after) != len(before) {
			t.Errorf("files before %q, and after %q", before, after)
		}
	}
	expect("", 0)
	source := migrated(t)
	if err := os.Rename(source, path); err != nil {
		t.Fatal(err)
	}
	expect("", 0)
	var epochs []string
	write := func(options sqlite.Options, name string) {
		t.Helper()
		d, err := sqlite.Open(t.Context(), path, options)
		if err != nil {
			t.Fatal(err)
		}
		if outcomes, err := d.Commit(t.Context(), podWrite(name)); err != nil || outcomes[0].Err != nil {
			t.Fatal(err, outcomes)
		}
		state, err := d.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		epochs = append(epochs, state.Epoch)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	write(sqlite.Options{Lineage: "one"}, "a")
	expect("one", 1)
	write(sqlite.Options{Lineage: "two"}, "b")
	expect("two", 2)
	write(sqlite.Options{}, "c")
	expect("two", 3)
	if epochs[0] != epochs[2] {
		t.Error("a name begins an epoch")
	}
	write(sqlite.Options{Lineage: "three", NewEpoch: true}, "d")
	if epochs[3] == epochs[2] {
		t.Error("a fork begins no epoch")
	}
	_, last, err := sqlite.ReadPosition(t.Context(), path, false)
	if err != nil || last < 1000 {
		t.Fatal(last, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := sqlite.ReadSnapshot(t.Context(), migrated(t), func(s sqlstore.Snapshot) error { return sqlite.Load(t.Context(), path, s) }); err != nil {
		t.Fatal(err)
	}
	expect("three", last)
}
