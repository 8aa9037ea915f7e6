package sqlite_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

// A database that was put back by a tool that knows nothing of byre begins a new epoch at the next
// start, whatever the tool leaves as it was.
func TestLineage_PutBackBeginsAnEpoch(t *testing.T) {
	t.Parallel()
	for name, putBack := range map[string]func(path string, backup, _ []byte) error{
		"the contents written over, as by cp": func(path string, backup, _ []byte) error {
			return os.WriteFile(path, backup, 0o600)
		},
		"a new file, as by litestream restore": func(path string, backup, _ []byte) error {
			return errors.Join(os.WriteFile(path+".restored", backup, 0o600), os.Rename(path+".restored", path))
		},
		"alone in its directory": func(path string, backup, _ []byte) error {
			return errors.Join(os.Remove(path+".lineage"), os.WriteFile(path, backup, 0o600))
		},
		"with a broken file of its lineage": func(path string, backup, _ []byte) error {
			return errors.Join(os.WriteFile(path+".lineage", nil, 0o600), os.WriteFile(path, backup, 0o600))
		},
		// A file system may give the inode of a removed file to the next one.
		"with the file of its lineage, and the inode again": func(path string, backup, lineage []byte) error {
			return errors.Join(os.Remove(path), os.WriteFile(path, backup, 0o600),
				writeLineage(path, lineage, func([]string) {}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver, path := open(t)
			reopen := func() {
				t.Helper()
				var err error
				if driver, err = sqlite.Open(t.Context(), path, sqlite.Options{}); err != nil {
					t.Fatal(err)
				}
			}
			commitPods(t, driver, "a", "b")
			if err := driver.Close(); err != nil {
				t.Fatal(err)
			}
			backup, err := os.ReadFile(path)
			lineage, lineageErr := os.ReadFile(path + ".lineage")
			if err := errors.Join(err, lineageErr); err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(name, "again") && strings.HasSuffix(string(lineage), "\n00000000000000000000\n") {
				t.Skip("the file system does not tell when a file was made")
			}
			reopen()
			past := storetest.RecordPast(t, driver, pod("a").Of())
			commitPods(t, driver, "lost", "lost too")
			before, err := driver.State(t.Context())
			if err := errors.Join(err, driver.Close()); err != nil {
				t.Fatal(err)
			}
			if err := putBack(path, backup, lineage); err != nil {
				t.Fatal(err)
			}
			reopen()
			state, err := driver.State(t.Context())
			if err != nil || state.Epoch == before.Epoch || state.Compacted <= before.Revision ||
				state.Revision != state.Compacted {
				t.Errorf("%+v, %v; before %+v", state, err, before)
			}
			for _, of := range []sqlstore.Resource{pod("a").Of(), {Resource: "none"}} {
				if compacted, err := driver.Compacted(t.Context(), of); err != nil || compacted != state.Compacted {
					t.Errorf("%v is compacted up to %d, %v; want %d", of, compacted, err, state.Compacted)
				}
			}
			if _, _, err := driver.Get(t.Context(), pod("a")); err != nil {
				t.Error(err)
			}
			commitPods(t, driver, "lost")
			past(driver, 0, 2)
			if err := driver.Close(); err != nil {
				t.Fatal(err)
			}
			reopen()
			defer driver.Close()
			if again, err := driver.State(t.Context()); err != nil || again.Epoch != state.Epoch ||
				again.Revision != state.Revision+1 {
				t.Errorf("the start after that: %+v, %v; want %+v", again, err, state)
			}
		})
	}
}

// The past is left after each epoch that an administrator declares, as far as no change was deleted.
func TestLineage_ThePastIsLeft(t *testing.T) {
	t.Parallel()
	driver, path := open(t)
	commitPods(t, driver, "a", "b", "c", "d")
	const last = 4
	past := storetest.RecordPast(t, driver, pod("a").Of())
	from := int64(0)
	for i := range 3 {
		if i > 0 {
			// Each deletion is of revisions before the epoch.
			from = int64(i)
			storetest.Compact(t, driver, from)
		}
		if err := driver.Close(); err != nil {
			t.Fatal(err)
		}
		execSQL(t, path, `UPDATE store SET lineage = 'restored'`)
		var err error
		if driver, err = sqlite.Open(t.Context(), path, sqlite.Options{}); err != nil {
			t.Fatal(err)
		}
		past(driver, from, last)
		commitPods(t, driver, fmt.Sprint("later-", i))
		past(driver, from, last)
	}
	// A program that does not know that the history has two ends deletes changes, and lists all the same.
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
	execSQL(t, path, `DELETE FROM undo_log WHERE revision <= 3; UPDATE resources SET compacted = max(compacted, 3)`)
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer driver.Close()
	past(driver, last+1, last)
}

// A copy of the file without its log, which cp makes of a database in use, is recognized, also where the file does not
// have any object yet. The log says what the copy has.
func TestLineage_ACopyWithoutTheLogIsRecognized(t *testing.T) {
	t.Parallel()
	driver, path := open(t)
	defer driver.Close()
	commitPods(t, driver, "a", "b")
	expect := func(objects int, what string) {
		t.Helper()
		content, err := os.ReadFile(path)
		copied := filepath.Join(t.TempDir(), "byre.db")
		if err := errors.Join(err, os.WriteFile(copied, content, 0o600)); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		if complete, err := sqlite.InspectAfterCrash(t.Context(), copied, true, time.Minute, logger); err != nil ||
			!complete ||
			!strings.Contains(log.String(), "the file was copied, restored or moved, and the database file is sound") {
			t.Errorf("%s: %t, %v: %s", what, complete, err, &log)
		}
		served, err := sqlite.Open(t.Context(), copied, sqlite.Options{Logger: logger})
		if err != nil {
			t.Fatal(err)
		}
		defer served.Close()
		lastChange := `lastChange=""`
		if objects > 0 {
			lastChange = "lastChange=20"
		}
		if text := log.String(); !strings.Contains(text, "level=WARN") ||
			!strings.Contains(text, fmt.Sprintf("objects=%d ", objects)) || !strings.Contains(text, lastChange) {
			t.Errorf("%s: %s", what, text)
		}
	}
	expect(0, "nothing is copied back")
	if _, err := foreign(t, path).ExecContext(t.Context(), `PRAGMA wal_checkpoint(PASSIVE)`); err != nil {
		t.Fatal(err)
	}
	expect(2, "the log is copied back")
}

// A copy that was made while pages were written is damaged. It is not served.
func TestInspectAfterCrash_RefusesADamagedCopy(t *testing.T) {
	t.Parallel()
	driver, path := open(t)
	for i := range 50 {
		if err := commits(t, driver, strconv.Itoa(i), 20_000); err != nil {
			t.Fatal(err)
		}
	}
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "byre.db")
	if err := os.WriteFile(copied, content, 0o600); err != nil {
		t.Fatal(err)
	}
	overwrite(t, copied)
	if _, err := sqlite.InspectAfterCrash(t.Context(), copied, true, time.Minute,
		slog.New(slog.DiscardHandler)); !errors.Is(err, sqlstore.ErrDamaged) {
		t.Errorf("a damaged copy: %v", err)
	}
}

// ReadIdle refuses a file on which a start would begin an epoch: a server on a copy of it would go on in
// the old one.
func TestReadIdle_RefusesWhatWasPutBack(t *testing.T) {
	t.Parallel()
	driver, path := open(t)
	commitPods(t, driver, "a")
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
	read := func() error { return sqlite.ReadIdle(t.Context(), path, func(sqlstore.Snapshot) error { return nil }) }
	if err := read(); err != nil {
		t.Errorf("after a stop: %v", err)
	}
	lineage, err := os.ReadFile(path + ".lineage")
	if err != nil {
		t.Fatal(err)
	}
	field := func(n int, value string) func() error {
		return func() error { return writeLineage(path, lineage, func(fields []string) { fields[n] = value }) }
	}
	for name, change := range map[string]func() error{
		"alone in its directory":   func() error { return os.Remove(path + ".lineage") },
		"with a broken file":       func() error { return os.WriteFile(path+".lineage", []byte("x\n"), 0o600) },
		"with the file of another": field(0, "ANOTHER"),
		"another inode":            field(1, "00000000000000000001"),
		"behind what was given":    field(2, "00000000000000000009"),
		"made at another time":     field(3, "00000000000000000001"),
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		wanted := name != "made at another time" || !strings.HasSuffix(string(lineage), "\n00000000000000000000\n")
		if err := read(); wanted && (err == nil || !strings.Contains(err.Error(), "start byre on it")) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if driver, err = sqlite.Open(t.Context(), path, sqlite.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(driver.Close(), read()); err != nil {
		t.Errorf("after a start: %v", err)
	}
}

// An administrator who has put back what byre can't recognize, a snapshot of the whole machine for
// example, says so.
func TestLineage_AnAdministratorDeclaresALoss(t *testing.T) {
	t.Parallel()
	driver, path := open(t)
	commitPods(t, driver, "a")
	before, err := driver.State(t.Context())
	if err := errors.Join(err, driver.Close()); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", migrations.SQLiteDSN(path))
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), `UPDATE store SET lineage = 'restored'`)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	if driver, err = sqlite.Open(t.Context(), path, sqlite.Options{}); err != nil {
		t.Fatal(err)
	}
	defer driver.Close()
	if state, err := driver.State(t.Context()); err != nil || state.Epoch == before.Epoch ||
		state.Compacted <= before.Revision {
		t.Errorf("%+v, %v; before %+v", state, err, before)
	}
}

// A process that is killed leaves the same database: the next one goes on in its epoch, and watches
// resume.
func TestLineage_SameFileGoesOn(t *testing.T) {
	t.Parallel()
	driver, path := open(t)
	commitPods(t, driver, "a")
	before, err := driver.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	next, err := sqlite.Open(t.Context(), copyOpenFiles(t, path), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if state, err := next.State(t.Context()); err != nil || state.Epoch != before.Epoch ||
		state.Revision != before.Revision || state.Compacted != 0 {
		t.Errorf("%+v, %v; before %+v", state, err, before)
	}
	if err := next.Close(); err != nil {
		t.Fatal(err)
	}
}

// The file of the lineage has no birth where the system did not tell it. The same database goes on, and
// its birth is noted when the system tells it.
func TestLineage_TheBirthMayBeUnknown(t *testing.T) {
	t.Parallel()
	driver, path := open(t)
	commitPods(t, driver, "a")
	before, err := driver.State(t.Context())
	if err := errors.Join(err, driver.Close()); err != nil {
		t.Fatal(err)
	}
	known, err := os.ReadFile(path + ".lineage")
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(known), "\n")
	for name, text := range map[string]string{"none": line + "\n", "zero": line + "\n00000000000000000000\n"} {
		if err := os.WriteFile(path+".lineage", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if driver, err = sqlite.Open(t.Context(), path, sqlite.Options{}); err != nil {
			t.Fatal(err)
		}
		if state, err := driver.State(t.Context()); err != nil || state.Epoch != before.Epoch {
			t.Errorf("%s: %+v, %v; before %+v", name, state, err, before)
		}
		commitPods(t, driver, name)
		if err := driver.Close(); err != nil {
			t.Fatal(err)
		}
		_, want, _ := strings.Cut(string(known), "\n")
		if text, err := os.ReadFile(path + ".lineage"); err != nil || !strings.HasSuffix(string(text), "\n"+want) {
			t.Errorf("%s: the file has %q, %v; want the birth %q", name, text, err, want)
		}
	}
}

func pod(name string) sqlstore.Key {
	return sqlstore.Key{Resource: "pods", Namespace: "n", Name: name}
}

// execSQL executes statements in a database that no process has open.
func execSQL(t *testing.T, path, statements string) {
	t.Helper()
	db, err := sql.Open("sqlite", migrations.SQLiteDSN(path))
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), statements)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

func commitPods(t *testing.T, driver *sqlite.Driver, names ...string) {
	t.Helper()
	for _, name := range names {
		commitOne(t, driver, sqlstore.Write{Op: sqlstore.Create, Key: pod(name), Value: []byte(`{}`)})
	}
}

// TestReadPosition_TellsWhoHasWrittenLast opens a database by processes of several names. A new name begins no epoch; a
// fork of the history does. What is restored stands for what was there.
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
	if err := sqlite.ReadSnapshot(t.Context(), migrated(t), func(s sqlstore.Snapshot) error {
		return sqlite.Load(t.Context(), path, s)
	}); err != nil {
		t.Fatal(err)
	}
	expect("three", last)
}

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
			if _, err := d.Commit(t.Context(), podWrite("b")); !errors.Is(err, sqlstore.ErrUnknown) ||
				errors.Is(err, sqlstore.ErrUnavailable) {
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
		if err != nil || (kept == path+".diverged-20260102T030405Z") != (name == "before") ||
			(kept == "") != (name == "after") {
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
