package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	engine "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/sqlite"
)

// redirect makes every open descriptor of the file at path refer to another file, which it
// opens with flags, until the test calls restore. SQLite then gets the errors of that file: EBADF from a descriptor
// that is not open for writing.
func redirect(t *testing.T, path, to string, flags int) (restore func()) {
	t.Helper()
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var fds []int
	for _, entry := range entries {
		fd, err := strconv.Atoi(entry.Name())
		if link, linkErr := os.Readlink(filepath.Join("/proc/self/fd", entry.Name())); err == nil && linkErr == nil &&
			link == resolved {
			fds = append(fds, fd)
		}
	}
	other, err := unix.Open(to, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	saved := make(map[int]int)
	for _, fd := range fds {
		if saved[fd], err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		if err := unix.Dup3(other, fd, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
	}
	if len(saved) == 0 {
		t.Fatalf("nobody has %s open", resolved)
	}
	if err := unix.Close(other); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		for fd, old := range saved {
			if err := errors.Join(unix.Dup3(old, fd, unix.O_CLOEXEC), unix.Close(old)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func createOf(name string, size int) sqlstore.Write {
	return sqlstore.Write{
		Op: sqlstore.Create, Key: sqlstore.Key{Resource: "configmaps", Namespace: "n", Name: name},
		Value: []byte(`"` + strings.Repeat("x", size) + `"`),
	}
}

// commits makes one batch of two creates. It returns the errors of the batch and of both
// writes.
func commits(t *testing.T, driver *sqlite.Driver, prefix string, size int) error {
	t.Helper()
	outcomes, err := driver.Commit(t.Context(), []sqlstore.Write{createOf(prefix+"-1", size), createOf(prefix+"-2", size)})
	for _, o := range outcomes {
		err = errors.Join(err, o.Err)
	}
	return err
}

// code is the engine's result code of an error, without its extension.
func code(err error) int {
	var e *engine.Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.Code() & 0xff
}

// foreign opens the database file as another program, such as a shell, would.
func foreign(t *testing.T, path string) *sql.Conn {
	t.Helper()
	db, err := sql.Open("sqlite", migrations.SQLiteDSN(path))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); db.Close() })
	return conn
}

func execute(t *testing.T, conn *sql.Conn, statement string) {
	t.Helper()
	if _, err := conn.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// TestFaults_BatchFailsAsAWhole: a batch that the disk or another process refuses
// fails as a whole, with the database's own reason, and what comes after the fault is
// committed.
func TestFaults_BatchFailsAsAWhole(t *testing.T) {
	t.Parallel()
	var disk *pgtest.Disk // of the database, in the case that has one
	for name, test := range map[string]struct {
		inject func(t *testing.T, driver *sqlite.Driver, path string, other *sql.Conn) (restore func())
		want   error
		code   int
	}{
		"locked at BEGIN": {
			func(t *testing.T, _ *sqlite.Driver, _ string, other *sql.Conn) func() {
				execute(t, other, `BEGIN IMMEDIATE`)
				return func() { execute(t, other, `ROLLBACK`) }
			}, sqlstore.ErrLocked, sqlite3.SQLITE_BUSY,
		},
		"I/O error at BEGIN": {
			func(t *testing.T, _ *sqlite.Driver, path string, other *sql.Conn) func() {
				// At BEGIN the writer has to read what another connection has written.
				execute(t, other, `PRAGMA user_version = 7`)
				return redirect(t, path+"-wal", path+"-wal", unix.O_WRONLY)
			}, sqlstore.ErrIO, sqlite3.SQLITE_IOERR,
		},
		"read-only": {
			func(t *testing.T, driver *sqlite.Driver, _ string, _ *sql.Conn) func() {
				queryOnly := func(on string) {
					if err := driver.ExecWriter(t.Context(), `PRAGMA query_only = `+on); err != nil {
						t.Fatal(err)
					}
				}
				queryOnly("1")
				return func() { queryOnly("0") }
			}, sqlstore.ErrReadOnly, sqlite3.SQLITE_READONLY,
		},
		"disk full before COMMIT": {
			func(t *testing.T, driver *sqlite.Driver, _ string, _ *sql.Conn) func() {
				limit := func(pages string) {
					if err := driver.ExecWriter(t.Context(), `PRAGMA max_page_count = `+pages); err != nil {
						t.Fatal(err)
					}
				}
				limit("1") // SQLite keeps the existing pages, and adding one fails as on a full disk
				return func() { limit("4294967294") }
			}, sqlstore.ErrDiskFull, sqlite3.SQLITE_FULL,
		},
		"disk full at COMMIT": {
			func(t *testing.T, _ *sqlite.Driver, _ string, other *sql.Conn) func() {
				// When the log is copied back, BEGIN does not read it, and only COMMIT fails.
				execute(t, other, `PRAGMA wal_checkpoint(TRUNCATE)`)
				if err := disk.Fill(); err != nil {
					t.Fatal(err)
				}
				return func() {
					if err := disk.Free(); err != nil {
						t.Fatal(err)
					}
				}
			}, sqlstore.ErrDiskFull, sqlite3.SQLITE_FULL,
		},
		"I/O error at COMMIT": {
			func(t *testing.T, _ *sqlite.Driver, path string, _ *sql.Conn) func() {
				return redirect(t, path+"-wal", path+"-wal", unix.O_RDONLY)
			}, sqlstore.ErrUnknown, sqlite3.SQLITE_IOERR,
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := migrated(t)
			if name == "disk full at COMMIT" {
				disk = pgtest.NewDisk(t, 96)
				path = filepath.Join(disk.Dir, "byre.db")
				if _, err := migrations.Up(t.Context(), "sqlite://"+path); err != nil {
					t.Fatal(err)
				}
			}
			driver, err := sqlite.Open(t.Context(), path, sqlite.Options{Busy: time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			defer driver.Close()
			if err := commits(t, driver, "before", 10); err != nil {
				t.Fatal(err)
			}
			if !errors.Is(test.want, sqlstore.ErrUnknown) && !errors.Is(test.want, sqlstore.ErrUnavailable) {
				t.Errorf("%v is not ErrUnavailable", test.want)
			}
			restore := test.inject(t, driver, path, foreign(t, path))
			for range 3 {
				err := commits(t, driver, "meanwhile", 100_000)
				if !errors.Is(err, test.want) || code(err) != test.code {
					t.Fatalf("error %v (code %d), want %v (code %d)", err, code(err), test.want, test.code)
				}
				if errors.Is(err, sqlstore.ErrUnknown) == errors.Is(err, sqlstore.ErrUnavailable) {
					t.Errorf("the error must match either ErrUnknown or ErrUnavailable: %v", err)
				}
				if public := sqlstore.Public(err); !strings.Contains(err.Error(), path) || strings.Contains(public, path) ||
					strings.Contains(public, "SQL") {
					t.Errorf("the operator reads %q, everybody %q", err, public)
				}
				// An empty batch succeeds even where the file can't grow.
				if _, err := driver.Commit(t.Context(), nil); !errors.Is(err, test.want) && name != "disk full before COMMIT" {
					t.Errorf("an empty batch: %v, want %v", err, test.want)
				}
			}
			restore()
			if err := commits(t, driver, "after", 10); err != nil {
				t.Error(err)
			}
			if state, err := driver.State(t.Context()); err != nil || state.Revision != 4 {
				t.Errorf("revision %d, %v", state.Revision, err)
			}
		})
	}
}

// A flush whose COMMIT fails with an I/O error is tried again. A read that needs the flush fails as others do on that
// disk, and not as a write with an unknown outcome.
func TestFaults_AFlushIsTriedAgain(t *testing.T) {
	t.Parallel()
	path := migrated(t)
	synctest.Test(t, func(t *testing.T) {
		driver := openVolatile(t, path, isLease)
		defer driver.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var maintaining sync.WaitGroup
		maintaining.Go(func() {
			if err := driver.Maintain(ctx); err != nil {
				t.Error(err)
			}
		})
		defer maintaining.Wait()
		defer cancel()
		commitOne(t, driver,
			sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "leases", Name: "a"}, Value: []byte(`{}`)})
		restore := redirect(t, path+"-wal", path+"-wal", unix.O_RDONLY)
		isFlushed := func() (is bool) {
			time.Sleep(15 * time.Second)
			synctest.Wait()
			if err := sqlite.ReadSnapshot(t.Context(), path, func(s sqlstore.Snapshot) error {
				is = s.ObjectCount > 0
				return nil
			}); err != nil {
				t.Error(err)
			}
			return is
		}
		if isFlushed() {
			t.Error("the flush has not failed: this test tests nothing")
		}
		_, err := driver.List(ctx, sqlstore.Query{Range: sqlstore.Range{Resource: "leases"}}, func(sqlstore.Record) error {
			return nil
		})
		if !errors.Is(err, sqlstore.ErrIO) || errors.Is(err, sqlstore.ErrUnknown) {
			t.Errorf("a list: %v", err)
		}
		restore()
		if !isFlushed() {
			t.Error("the lease was not flushed")
		}
	})
}

// The driver ends a transaction that a failed COMMIT and a failed ROLLBACK have left open, and
// begins the next one.
func TestFaults_TransactionLeftOpenIsEnded(t *testing.T) {
	t.Parallel()
	driver, _ := open(t)
	defer driver.Close()
	if err := driver.ExecWriter(t.Context(), `BEGIN IMMEDIATE`); err != nil {
		t.Fatal(err)
	}
	if err := commits(t, driver, "next", 10); err != nil {
		t.Error(err)
	}
}

// unprivileged has the rest of the test access files as an unprivileged user, who owns dir, so
// that file modes have an effect even if the test runs as root.
func unprivileged(t *testing.T, dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		return
	}
	const nobody = 65534
	for parent := filepath.Dir(dir); parent != os.TempDir() && len(parent) > 1; parent = filepath.Dir(parent) {
		if err := os.Chmod(parent, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chown(path, nobody, nobody))
	})
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	if err := unix.Setfsuid(nobody); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setfsuid(0); err != nil {
			t.Error(err)
		}
		runtime.UnlockOSThread()
	})
}

// Open refuses a file that can't be written, and names it.
func TestOpen_RefusesAnUnwritableFile(t *testing.T) {
	path := migrated(t)
	unprivileged(t, filepath.Dir(path))
	if err := os.Chmod(path, 0o400); err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Up(t.Context(), "sqlite://"+(&url.URL{Path: path}).EscapedPath()); !errors.Is(err,
		os.ErrPermission) || !strings.Contains(err.Error(), path+" can't be written") {
		t.Errorf("migrate: %v", err)
	}
	if _, err := sqlite.Open(t.Context(), path, sqlite.Options{}); !errors.Is(err, os.ErrPermission) ||
		!strings.Contains(err.Error(), path+" can't be written") {
		t.Errorf("open: %v", err)
	}
	if err := errors.Join(os.Chmod(path, 0o600), os.Chmod(filepath.Dir(path), 0o500)); err != nil {
		t.Fatal(err)
	}
	if _, err := sqlite.Open(t.Context(), path, sqlite.Options{}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("open in a directory that can't be written: %v", err)
	}
}

// The errors of a damaged file, and of a missing table, name the file.
func TestFaults_DamageIsReported(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		damage func(t *testing.T, path string, other *sql.Conn)
		want   error
	}{
		"pages overwritten": {
			func(t *testing.T, path string, other *sql.Conn) {
				execute(t, other, `PRAGMA wal_checkpoint(TRUNCATE)`)
				file, err := os.OpenFile(path, os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer file.Close()
				if _, err := file.WriteAt([]byte(strings.Repeat("garbage ", 1000_000)), 8192); err != nil {
					t.Fatal(err)
				}
			}, sqlstore.ErrDamaged,
		},
		"table gone": {
			func(t *testing.T, _ string, other *sql.Conn) { execute(t, other, `DROP TABLE undo_log`) },
			sqlstore.ErrDatabase,
		},
	} {
		t.Run(name, func(t *testing.T) {
			driver, path := open(t)
			for i := range 10 {
				if err := commits(t, driver, strconv.Itoa(i), 100_000); err != nil {
					t.Fatal(err)
				}
			}
			if err := driver.Close(); err != nil {
				t.Fatal(err)
			}
			driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer driver.Close()
			test.damage(t, path, foreign(t, path))
			query := sqlstore.Query{Range: sqlstore.Range{Resource: "configmaps"}}
			_, listErr := driver.List(t.Context(), query, func(sqlstore.Record) error { return nil })
			_, changesErr := driver.Changes(t.Context(), sqlstore.ChangesQuery{After: 0, Limit: 1000})
			for what, err := range map[string]error{
				"list": listErr, "changes": changesErr, "commit": commits(t, driver, "next", 100_000),
			} {
				if !errors.Is(err, test.want) || !errors.Is(err, sqlstore.ErrDatabase) || !strings.Contains(err.Error(), path) {
					t.Errorf("%s: %v, want %v", what, err, test.want)
				}
			}
		})
	}
}
