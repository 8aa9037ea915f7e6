package sqlite_test

import (
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

func TestOpen_RefusesUnusableFiles(t *testing.T) {
	t.Parallel()
	if _, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "none.db"), sqlite.Options{}); !errors.Is(err,
		migrations.ErrOlder) {
		t.Errorf("no file: %v", err)
	}
	driver, path := open(t)
	_, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	var inUse *migrations.InUseError
	if !errors.As(err, &inUse) || inUse.PID != os.Getpid() {
		t.Errorf("a second process: %v", err)
	}
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", migrations.SQLiteDSN(path))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for version, want := range map[int]error{0: migrations.ErrOlder, 999: migrations.ErrNewer} {
		if _, err := db.ExecContext(t.Context(),
			`UPDATE byre_schema_version SET version = ?1; UPDATE store SET least_version = ?1`, version); err != nil {
			t.Fatal(err)
		}
		if _, err := sqlite.Open(t.Context(), path, sqlite.Options{}); !errors.Is(err, want) {
			t.Errorf("version %d: %v", version, err)
		}
	}
	other := filepath.Join(t.TempDir(), "other.db")
	db, err = sql.Open("sqlite", migrations.SQLiteDSN(other))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE kine (id INTEGER PRIMARY KEY)`); err != nil {
		t.Fatal(err)
	}
	if _, err := sqlite.Open(t.Context(), other, sqlite.Options{}); !errors.Is(err, migrations.ErrForeign) {
		t.Errorf("another program's: %v", err)
	}
}

// Open makes the settings of the file on which durability and the file's size depend.
func TestOpen_SetsWhatDurabilityNeeds(t *testing.T) {
	t.Parallel()
	driver, path := open(t)
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path + "-wal"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the log is left after Close: %v", err)
	}
	db, err := sql.Open("sqlite", migrations.SQLiteDSN(path))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for pragma, want := range map[string]string{
		"journal_mode": "wal", "auto_vacuum": "2", "application_id": strconv.Itoa(migrations.ApplicationID),
		"integrity_check": "ok",
	} {
		var got string
		if err := db.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %s, %v; want %s", pragma, got, err, want)
		}
	}
}

// Open restores settings that another program has changed in the file, or refuses the file:
// durability depends on them in every connection.
func TestOpen_AssertsItsSettings(t *testing.T) {
	t.Parallel()
	first, path := open(t)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "copy.db")
	db, err := sql.Open("sqlite", migrations.SQLiteDSN(path))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), `VACUUM INTO ?`, copied); err != nil {
		t.Fatal(err)
	}
	driver, err := sqlite.Open(t.Context(), copied, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer driver.Close()
	for pragma, want := range map[string]string{
		"journal_mode": "wal", "synchronous": "2", "foreign_keys": "0", "auto_vacuum": "2",
	} {
		values, err := driver.Pragmas(t.Context(), pragma)
		if err != nil || len(values) != 6 || slices.ContainsFunc(values, func(value string) bool { return value != want }) {
			t.Errorf("%s of the connections is %v, %v; want %s", pragma, values, err, want)
		}
	}
	want := []string{"10000", "0", "10000", "10000", "10000", "10000"} // that of Maintain holds nobody up
	if values, err := driver.Pragmas(t.Context(), "busy_timeout"); err != nil || !slices.Equal(values, want) {
		t.Errorf("busy_timeout of the connections is %v, %v; want %v", values, err, want)
	}

	if _, err := db.ExecContext(t.Context(), `PRAGMA auto_vacuum = 0; VACUUM`); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := sqlite.Open(t.Context(), path, sqlite.Options{}); err == nil ||
		!strings.Contains(err.Error(), "auto_vacuum is 0, want 2") {
		t.Errorf("without auto_vacuum: %v", err)
	}
}

// Open refuses a file that is already open, also by another name.
func TestOpen_RefusesAnotherNameOfAnOpenFile(t *testing.T) {
	t.Parallel()
	driver, path := open(t)
	defer driver.Close()
	dir := t.TempDir()
	if err := errors.Join(os.Symlink(path, filepath.Join(dir, "link.db")),
		os.Symlink(filepath.Dir(path), filepath.Join(dir, "linked"))); err != nil {
		t.Fatal(err)
	}
	var inUse *migrations.InUseError
	for _, other := range []string{filepath.Join(dir, "link.db"), filepath.Join(dir, "linked", "byre.db")} {
		if _, err := sqlite.Open(t.Context(), other, sqlite.Options{}); !errors.As(err, &inUse) {
			t.Errorf("%s: %v", other, err)
		}
		if _, err := migrations.Up(t.Context(), "sqlite://"+other); !errors.As(err, &inUse) {
			t.Errorf("migrate %s: %v", other, err)
		}
	}
}

// Shrink returns space to the file system, by no more pages a call than its limit, so that a call takes the writers
// little time however long the list of free pages is.
func TestCompaction_ShrinksTheFile(t *testing.T) {
	t.Parallel()
	driver, path := open(t)
	key := sqlstore.Key{Resource: "configmaps", Namespace: "n", Name: "big"}
	value := []byte(`"` + strings.Repeat("x", 100_000) + `"`)
	for i := range int64(100) {
		w := sqlstore.Write{Op: sqlstore.Update, Key: key, Replaces: i, Value: value}
		if i == 0 {
			w.Op = sqlstore.Create
		}
		if o, err := driver.Commit(t.Context(), []sqlstore.Write{w}); err != nil || o[0].Err != nil {
			t.Fatal(err, o)
		}
	}
	const limit = 10
	storetest.Compact(t, driver, 100)
	for done, before := false, pagesOf(t, path); !done; {
		var err error
		if done, err = driver.Shrink(t.Context(), limit); err != nil {
			t.Fatal(err)
		}
		pages := pagesOf(t, path)
		if before-pages > limit+1 { // and a page of the map that auto_vacuum keeps of the pages
			t.Errorf("one call returned %d pages, want at most %d", before-pages, limit+1)
		}
		before = pages
	}
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() > 1_000_000 {
		t.Errorf("the file has %d bytes, %v", info.Size(), err)
	}
}

// pagesOf returns the number of pages of the file as the last commit left it.
func pagesOf(t *testing.T, path string) (pages int) {
	t.Helper()
	db, err := sql.Open("sqlite", migrations.SQLiteDSN(path)+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRowContext(t.Context(), `PRAGMA page_count`).Scan(&pages); err != nil {
		t.Fatal(err)
	}
	return pages
}

// TestKill_KeepsAcknowledgedWrites writes in another process and kills that process: every
// write that the process has acknowledged is in the file.
func TestKill_KeepsAcknowledgedWrites(t *testing.T) {
	if path := os.Getenv("BYRE_TEST_WRITE_UNTIL_KILLED"); path != "" {
		writeUntilKilled(t, path)
		return
	}
	t.Parallel()
	driver, path := open(t)
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
	var before int64
	for range 3 {
		writer := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKill_KeepsAcknowledgedWrites$")
		writer.Env = append(os.Environ(), "BYRE_TEST_WRITE_UNTIL_KILLED="+path)
		out, err := writer.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		var acknowledged int64
		for acknowledged < before+100 {
			if _, err := fmt.Fscanln(out, &acknowledged); err != nil {
				t.Fatal(err)
			}
		}
		if err := writer.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		// Acknowledgements that the process wrote to the pipe before it was killed count
		// too.
		for err = error(nil); err == nil; {
			var more int64
			if _, err = fmt.Fscanln(out, &more); err == nil {
				acknowledged = more
			}
		}
		_, _ = io.Copy(io.Discard, out)
		_ = writer.Wait()
		before = checkAfterKill(t, path, acknowledged)
	}
}

func writeUntilKilled(t *testing.T, path string) {
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	state, err := driver.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := state.Revision; ; i++ {
		key := sqlstore.Key{Resource: "pods", Namespace: "n", Name: strconv.FormatInt(i, 10)}
		o, err := driver.Commit(t.Context(), []sqlstore.Write{{Op: sqlstore.Create, Key: key, Value: []byte(`{}`)}})
		if err != nil || o[0].Err != nil {
			t.Fatal(err, o)
		}
		fmt.Println(o[0].Revision)
	}
}

func checkAfterKill(t *testing.T, path string, acknowledged int64) int64 {
	t.Helper()
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer driver.Close()
	count := int64(0)
	listed, err := driver.List(t.Context(), sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}},
		func(sqlstore.Record) error {
			count++
			return nil
		})
	if err != nil || listed.Revision < acknowledged || count != listed.Revision {
		t.Fatalf("after kill: %d objects at revision %d, acknowledged %d, %v", count, listed.Revision, acknowledged, err)
	}
	changes, err := driver.Changes(t.Context(), sqlstore.ChangesQuery{After: 0, Limit: 1_000_000})
	if err != nil || int64(len(changes)) != listed.Revision {
		t.Fatalf("after kill: %d changes at revision %d, %v", len(changes), listed.Revision, err)
	}
	return listed.Revision
}
