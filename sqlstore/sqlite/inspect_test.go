package sqlite_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

// damages is how many damaged files the test makes. BYRE_TEST_DAMAGES sets another number.
const damages = 60

// makeFilled makes a database with objects, history and free pages, and closes it.
func makeFilled(t *testing.T) (path string) {
	t.Helper()
	driver, path := open(t)
	random := rand.New(rand.NewPCG(1, 1))
	key := func(i int) sqlstore.Key {
		return sqlstore.Key{Resource: "pods", Namespace: "n" + strconv.Itoa(i%3), Name: "pod" + strconv.Itoa(i)}
	}
	value := func() []byte {
		return fmt.Appendf(nil, `{"metadata":{"name":"x"},"text":%q}`, strings.Repeat("abcdefgh", random.IntN(400)))
	}
	write := func(w sqlstore.Write) int64 {
		w.Author = sqlstore.Author{User: "alice", Verb: string(w.Op), AuditID: "audit"}
		o, err := driver.Commit(t.Context(), []sqlstore.Write{w})
		if err != nil || o[0].Err != nil {
			t.Fatal(o, err)
		}
		return o[0].Revision
	}
	for i := range 80 {
		at := write(sqlstore.Write{Op: sqlstore.Create, Key: key(i), UID: "uid", Encoding: "encoding", Value: value()})
		if i%2 == 0 {
			at = write(sqlstore.Write{Op: sqlstore.Update, Key: key(i), Replaces: at, UID: "uid", Encoding: "encoding",
				Value: value()})
		}
		if i%5 == 0 {
			write(sqlstore.Write{Op: sqlstore.Delete, Key: key(i), Replaces: at})
		}
	}
	storetest.Compact(t, driver, 30)
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// readServed returns all that clients can read.
func readServed(ctx context.Context, driver *sqlite.Driver) (text string, err error) {
	var b strings.Builder
	for _, at := range []int64{0, 60} {
		listed, err := driver.List(ctx, sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}, At: at},
			func(r sqlstore.Record) error {
				fmt.Fprintf(&b, "%+v %s\n", r.Revision, r.Value)
				return nil
			})
		fmt.Fprintln(&b, listed)
		if err != nil {
			return "", err
		}
	}
	changes, err := driver.Changes(ctx, sqlstore.ChangesQuery{After: 30, Limit: 1000})
	for _, c := range changes {
		fmt.Fprintf(&b, "%d %s %+v %v %s\n", c.Revision, c.Op, c.Author, c.Time, c.New.Value)
	}
	return b.String(), err
}

// dump returns the definitions and the contents of the tables and of their indexes, without the uid
// of changes that create: no checksum has it, and status.Check compares it with later rows.
func dump(t *testing.T, path string) string {
	t.Helper()
	db, err := sql.Open("sqlite", migrations.SQLiteDSN(path)+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var b strings.Builder
	for _, query := range []string{
		`SELECT sql, name, type, '', '' FROM sqlite_schema ORDER BY name`,
		`SELECT version, dirty, '', '', '' FROM byre_schema_version`,
		`SELECT id, program, revision, compacted, epoch FROM store`,
		`SELECT id, "group", resource, defined_by, compacted FROM resources NOT INDEXED`,
		`SELECT resource_id || namespace || '/' || name, revision || uid || generation || created_revision || time || verb || subresource, manager || who || real_user || encoding, expires, value FROM current_objects NOT INDEXED`,
		`SELECT resource_id, namespace, name, '', '' FROM current_objects INDEXED BY current_objects_key ORDER BY 1, 2, 3`,
		`SELECT revision || time || op || verb || subresource || manager || who || real_user || audit_id, resource_id || namespace || '/' || name, CASE op WHEN 'create' THEN '' ELSE uid END || replaces || '/' || created_revision, encoding || coalesce(expires, ''), value FROM undo_log NOT INDEXED`,
		`SELECT resource_id, namespace, name, '', '' FROM undo_log INDEXED BY undo_log_key ORDER BY 1, 2, 3`,
		`SELECT resource_id, revision, '', '', '' FROM undo_log INDEXED BY undo_log_resource ORDER BY 1, 2`,
	} {
		rows, err := db.QueryContext(t.Context(), query)
		if err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		defer rows.Close()
		for rows.Next() {
			var c [5]sql.NullString
			if err := rows.Scan(&c[0], &c[1], &c[2], &c[3], &c[4]); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(&b, c)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// damage returns a damaged copy of the file's bytes. n decides what is damaged.
func damage(file []byte, n int) (damaged []byte, what string) {
	random := rand.New(rand.NewPCG(7, uint64(n)))
	at := random.IntN(len(file))
	damaged = bytes.Clone(file)
	switch n % 4 {
	case 0, 1:
		damaged[at] ^= 1 << random.IntN(8)
		return damaged, fmt.Sprintf("a bit at %d", at)
	case 2:
		end := min(at+512, len(file))
		clear(damaged[at:end])
		return damaged, fmt.Sprintf("zeros from %d to %d", at, end)
	default:
		return damaged[:at], fmt.Sprintf("the end at %d", at)
	}
}

// Damage of a file does not go unnoticed: Open or a read refuses the file, or the check finds
// the damage, unless the damaged bytes are not in use.
func TestDamage_IsRefusedOrFound(t *testing.T) {
	if testing.Short() {
		t.Skip("opens many databases")
	}
	t.Parallel()
	path := makeFilled(t)
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lineage, err := os.ReadFile(path + ".lineage")
	if err != nil {
		t.Fatal(err)
	}
	want := dump(t, path)
	count := damages
	if n, err := strconv.Atoi(os.Getenv("BYRE_TEST_DAMAGES")); err == nil {
		count = n
	}
	outcomes := make(map[string]int)
	for n := range count {
		damaged, what := damage(file, n)
		// In place, so that no start takes the file for one that was restored.
		for suffix, content := range map[string][]byte{"": damaged, "-wal": nil, ".lineage": lineage} {
			if err := os.WriteFile(path+suffix, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		outcomes[judge(t, path, what, want)]++
	}
	t.Logf("%d damaged files: %v", count, outcomes)
}

// judge opens, reads and checks a damaged file, and returns what noticed the damage.
func judge(t *testing.T, path, what, want string) string {
	t.Helper()
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: refused with %q", what, err)
		}
		return "refused at the start"
	}
	_, readErr := readServed(t.Context(), driver)
	if err := driver.Close(); err != nil && readErr == nil {
		readErr = err
	}
	findings := 0
	checkErr := sqlite.Inspect(t.Context(), path, func(sqlstore.Finding) { findings++ })
	readAll := sqlite.ReadDamaged(t.Context(), path, func(s sqlstore.Snapshot) error {
		_, err := s.Salvage(func(sqlstore.Finding) { findings++ })
		return err
	})
	checkErr = errors.Join(checkErr, readAll)
	switch {
	case readErr != nil && checkErr == nil && findings == 0:
		t.Errorf("%s: a read fails with %v, but the check finds nothing", what, readErr)
		return "not found"
	case readErr != nil:
		return "refused when read"
	case checkErr != nil || findings > 0:
		return "found by the check"
	case dump(t, path) != want:
		t.Errorf("%s: neither a read nor the check fails, and the contents differ:\n%s", what,
			cmp.Diff(strings.Split(want, "\n"), strings.Split(dump(t, path), "\n")))
		return "not found"
	}
	return "not in use"
}

// ReadDamaged reads all rows but those of a page that can't be read, and names these, also where the revisions of the
// rows are far apart or the last revision is damaged, when there are too many to try each.
func TestReadDamaged_ReadsAroundAPage(t *testing.T) {
	t.Parallel()
	const count, apart = 300, 10_000_000
	for name, lost := range map[string]int{"in the middle": count / 2, "at the end": count} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "byre.db")
			now := time.Now().UTC().Truncate(time.Microsecond)
			marker := func(i int) []byte { return fmt.Appendf(nil, `"marker%d"`, i) }
			rows := storetest.Rows{Header: sqlstore.Header{Revision: 1 << 55, Compacted: 1 << 55, CompleteAfter: 1 << 55,
				Epoch: "e", Time: now, ObjectCount: count}}
			for i := 1; i <= count; i++ {
				rows.Objects = append(rows.Objects, &sqlstore.ObjectRow{Time: now, Record: sqlstore.Record{
					Key:     sqlstore.Key{Resource: "pods", Namespace: "n", Name: fmt.Sprintf("pod%03d", i)},
					Created: int64(i * apart), Revision: int64(i * apart),
					Value: append(bytes.Repeat([]byte(" "), 500), marker(i)...),
				}})
			}
			if err := sqlite.Load(t.Context(), path, rows.Snapshot()); err != nil {
				t.Fatal(err)
			}
			file, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			at := bytes.Index(file, marker(lost)) / 4096 * 4096
			clear(file[at : at+4096])
			if err := os.WriteFile(path, file, 0o600); err != nil {
				t.Fatal(err)
			}
			var read, named int
			if err := sqlite.ReadDamaged(t.Context(), path, func(s sqlstore.Snapshot) error {
				for _, err := range s.Objects {
					var damaged *sqlstore.DamagedRow
					switch {
					case err == nil:
						read++
					case errors.As(err, &damaged):
						named++
					default:
						return err
					}
				}
				return nil
			}); err != nil || read+named != count || named == 0 || named > 10 {
				t.Errorf("%d read, %d named: %v", read, named, err)
			}
		})
	}
}

// InspectAfterCrash checks a file that was not closed, together with its log. It refuses a log
// that belongs to another state of the file, and says what to do.
func TestInspectAfterCrash_ChecksTheFileWithItsLog(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	driver, path := open(t)
	if err := commits(t, driver, "before", 100); err != nil {
		t.Fatal(err)
	}
	copyTo := func(dir string, suffixes ...string) string {
		to := filepath.Join(dir, "byre.db")
		for _, suffix := range suffixes {
			content, err := os.ReadFile(path + suffix)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(to+suffix, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return to
	}
	killed := copyTo(t.TempDir(), "", "-wal") // as a power failure would leave it
	staleDir := t.TempDir()
	stale := copyTo(staleDir, "-wal")
	for i := range 20 {
		if err := commits(t, driver, strconv.Itoa(i), 5000); err != nil {
			t.Fatal(err)
		}
	}
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := sqlite.InspectAfterCrash(t.Context(), path, true, time.Minute, logger); err != nil || log.Len() > 0 {
		t.Errorf("after a clean stop: %v %s", err, &log)
	}
	if complete, err := sqlite.InspectAfterCrash(t.Context(), killed, true, 0, logger); err != nil || complete ||
		!strings.Contains(log.String(), "is checked while it is served") {
		t.Errorf("after a kill, without time: %t, %v %s", complete, err, &log)
	}
	if complete, err := sqlite.InspectAfterCrash(t.Context(), killed, true, time.Minute, logger); err != nil ||
		!complete || !strings.Contains(log.String(), "is sound") {
		t.Errorf("after a kill: %t, %v %s", complete, err, &log)
	}
	if wal, err := os.Stat(killed + "-wal"); err != nil || wal.Size() == 0 {
		t.Errorf("the check has changed the log: %v", err)
	}
	// A newer file was restored beside the old log.
	copyTo(staleDir, "")
	_, err := sqlite.InspectAfterCrash(t.Context(), stale, true, 0, logger)
	if !errors.Is(err, sqlstore.ErrDamaged) || !strings.Contains(err.Error(), "-wal") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("a stale log: %v", err)
	}
	if err := os.WriteFile(stale, []byte("not a database at all"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sqlite.InspectAfterCrash(t.Context(), stale, true, time.Minute, logger); err == nil {
		t.Error("a file that is no database was let through")
	}
}

// Open refuses a file whose history has a gap, unless Options.AcceptGaps is set, with which the
// gap can be compacted.
func TestOpen_RefusesMissingChanges(t *testing.T) {
	t.Parallel()
	path := makeFilled(t)
	execute(t, foreign(t, path), `DELETE FROM undo_log WHERE revision = 31`)
	if _, err := sqlite.Open(t.Context(), path, sqlite.Options{}); !errors.Is(err, sqlstore.ErrDamaged) ||
		!strings.Contains(err.Error(), "byre check") {
		t.Errorf("open: %v", err)
	}
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{AcceptGaps: true})
	if err != nil {
		t.Fatal(err)
	}
	storetest.Compact(t, driver, 31)
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
	if driver, err = sqlite.Open(t.Context(), path, sqlite.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := driver.Close(); err != nil {
		t.Error(err)
	}
}

// CheckFile finds a page that was overwritten while the driver has the file open, beside writes, and goes
// on with neither reads nor a check that is stopped.
func TestCheckFile_FindsDamageWhileTheFileIsServed(t *testing.T) {
	t.Parallel()
	driver, path := open(t)
	for i := range 50 {
		if err := commits(t, driver, strconv.Itoa(i), 20_000); err != nil {
			t.Fatal(err)
		}
	}
	if err := driver.MaintainOnce(t.Context()); err != nil { // the log is copied back
		t.Fatal(err)
	}
	if err := driver.CheckFile(t.Context()); err != nil {
		t.Errorf("a sound file: %v", err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := driver.CheckFile(stopped); err == nil || errors.Is(err, sqlstore.ErrDamaged) {
		t.Errorf("a check that is stopped: %v", err)
	}
	overwrite(t, path)
	if err := commits(t, driver, "after", 100); err != nil {
		t.Error(err)
	}
	if err := driver.CheckFile(t.Context()); !errors.Is(err, sqlstore.ErrDamaged) || strings.Contains(err.Error(), "\n") {
		t.Errorf("a damaged file: %v", err)
	}
}

// overwrite overwrites a page in the middle of a file.
func overwrite(t *testing.T, path string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	info, err := file.Stat()
	if err == nil {
		_, err = file.WriteAt(bytes.Repeat([]byte{0xff}, 4096), info.Size()/8192*4096)
	}
	if err = errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
}

// A row whose bytes have changed is not served: every read that returns it fails. A row of
// an older release has no checksum and is served.
func TestSums_NoReadServesAChangedRow(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"value":          `UPDATE current_objects SET value = '{"replicas":9}' WHERE name = 'a'`,
		"encoding":       `UPDATE current_objects SET encoding = 'other' WHERE name = 'a'`,
		"expiry":         `UPDATE current_objects SET expires = '2026-01-01T00:00:00.000000Z' WHERE name = 'a'`,
		"uid":            `UPDATE current_objects SET uid = 'other' WHERE name = 'a'`,
		"replaced value": `UPDATE undo_log SET value = '{"replicas":9}' WHERE revision = 2`,
		"author":         `UPDATE undo_log SET who = 'mallory' WHERE revision = 2`,
		"time":           `UPDATE undo_log SET time = '2020-01-01T00:00:00.000000Z' WHERE revision = 2`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver, path := open(t)
			defer driver.Close()
			k := createAndUpdate(t, driver)
			pods := sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}}
			none := func(sqlstore.Record) error { return nil }
			read := func() []error {
				_, _, getErr := driver.Get(t.Context(), k)
				_, listErr := driver.List(t.Context(), pods, none)
				old := pods
				old.At = 1
				_, oldErr := driver.List(t.Context(), old, none)
				_, changesErr := driver.Changes(t.Context(), sqlstore.ChangesQuery{After: 0, Limit: 10})
				return []error{getErr, listErr, oldErr, changesErr}
			}
			if err := errors.Join(read()...); err != nil {
				t.Fatal(err)
			}
			other := foreign(t, path)
			execute(t, other, change)
			var failed int
			for _, err := range read() {
				if err != nil {
					failed++
					if !errors.Is(err, sqlstore.ErrDamaged) || !strings.Contains(err.Error(), path) ||
						!strings.Contains(err.Error(), "byre check") {
						t.Errorf("unexpected error: %v", err)
					}
				}
			}
			want := 3 // Get, List and Changes
			switch name {
			case "replaced value":
				want = 2 // List at revision 1, and Changes
			case "author", "time":
				want = 1 // Changes
			}
			if failed != want {
				t.Errorf("%d of 4 reads failed, want %d", failed, want)
			}
			execute(t, other,
				`UPDATE current_objects SET record_sum = NULL, change_sum = NULL; UPDATE undo_log SET record_sum = NULL, change_sum = NULL`)
			if err := errors.Join(read()...); err != nil {
				t.Errorf("without sums: %v", err)
			}
		})
	}
}

// A change whose value is gone, since somebody has deleted the row that replaced it, is damage
// too: who follows the changes reads everything again.
func TestChanges_WithoutTheirValueAreDamaged(t *testing.T) {
	t.Parallel()
	driver, path := open(t)
	defer driver.Close()
	createAndUpdate(t, driver)
	execute(t, foreign(t, path), `DELETE FROM undo_log WHERE revision = 2`)
	changes, err := driver.Changes(t.Context(), sqlstore.ChangesQuery{After: 0, Limit: 10})
	if !errors.Is(err, sqlstore.ErrDamaged) || !strings.Contains(err.Error(), path) ||
		!strings.Contains(err.Error(), "byre check") {
		t.Errorf("%+v, %v", changes, err)
	}
}

// createAndUpdate makes the revisions 1 and 2 of an object.
func createAndUpdate(t *testing.T, driver sqlstore.Driver) sqlstore.Key {
	t.Helper()
	k := sqlstore.Key{Resource: "pods", Namespace: "n", Name: "a"}
	for _, w := range []sqlstore.Write{
		{Op: sqlstore.Create, Key: k, Value: []byte(`{"replicas":1}`), UID: "u", Encoding: "f"},
		{Op: sqlstore.Update, Key: k, Replaces: 1, Value: []byte(`{"replicas":2}`), UID: "u", Encoding: "f"},
	} {
		if o, err := driver.Commit(t.Context(), []sqlstore.Write{w}); err != nil || o[0].Err != nil {
			t.Fatal(o, err)
		}
	}
	return k
}

// A backup of the file is restored while a log of later writes is still beside it. SQLite would
// copy the pages of that log into the file. InspectAfterCrash or Open refuses the file, however
// many writes are between the backup and the log, and in the log.
func TestInspectAfterCrash_RefusesALaterLog(t *testing.T) {
	t.Parallel()
	for _, between := range []int{1, 3, 20, 200} {
		for _, inLog := range []int{1, 5, 50} {
			t.Run(strconv.Itoa(between)+" and "+strconv.Itoa(inLog), func(t *testing.T) {
				t.Parallel()
				driver, path := open(t)
				write := func(prefix string, n int) {
					t.Helper()
					for i := range n {
						if err := commits(t, driver, prefix+strconv.Itoa(i), 3000); err != nil {
							t.Fatal(err)
						}
					}
				}
				reopen := func() {
					t.Helper()
					err := driver.Close()
					if err == nil {
						driver, err = sqlite.Open(t.Context(), path, sqlite.Options{})
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				read := func(name string) []byte {
					t.Helper()
					content, err := os.ReadFile(name)
					if err != nil {
						t.Fatal(err)
					}
					return content
				}
				write("before", 30)
				reopen()
				backup := read(path)
				write("between", between)
				reopen() // copies the log back and begins a new one
				write("log", inLog)
				log := read(path + "-wal")
				if err := driver.Close(); err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(os.WriteFile(path, backup, 0o600), os.WriteFile(path+"-wal", log, 0o600)); err != nil {
					t.Fatal(err)
				}
				_, err := sqlite.InspectAfterCrash(t.Context(), path, true, time.Minute,
					slog.New(slog.NewTextHandler(io.Discard, nil)))
				if err == nil {
					if driver, err = sqlite.Open(t.Context(), path, sqlite.Options{}); err == nil {
						err = driver.Close()
					}
				}
				if !errors.Is(err, sqlstore.ErrDamaged) {
					t.Errorf("a later log: %v", err)
				}
			})
		}
	}
}
