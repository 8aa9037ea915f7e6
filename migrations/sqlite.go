package migrations

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	// Registers the driver "sqlite" with database/sql.
	_ "modernc.org/sqlite"
)

// sqliteConn implements connection.
type sqliteConn struct {
	lock *FileLock
	db   *sql.DB
	conn *sql.Conn
}

// openSQLite opens the database at path. If there is none, it makes one if change is set, and
// returns nil otherwise.
func openSQLite(ctx context.Context, path string, change bool) (_ connection, err error) {
	if change {
		if err := MkdirAllOwned(filepath.Dir(path), 0o700); err != nil {
			return nil, fmt.Errorf("make the database's folder: %w", err)
		}
	}
	fresh, err := InspectFile(path)
	if err != nil {
		return nil, err
	}
	if fresh && !change {
		return nil, nil
	}
	s := &sqliteConn{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if change {
		if s.lock, err = AcquireFile(path); err != nil {
			return nil, err
		}
		path = s.lock.Path
	}
	if fresh {
		// The mode is 0600 because the database holds Secrets. SQLite gives the write-ahead
		// log the mode of the file.
		file, err := OpenOwned(path, os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("make %s: %w", path, err)
		}
		if err := file.Close(); err != nil {
			return nil, fmt.Errorf("make %s: %w", path, err)
		}
	}
	s.db, err = sql.Open("sqlite", SQLiteDSN(path)+"?_pragma=busy_timeout(10000)")
	if err != nil {
		return nil, err
	}
	if s.conn, err = s.db.Conn(ctx); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if fresh {
		// auto_vacuum must be set before the first table is made; later only a VACUUM could
		// turn it on.
		// Invariant: the header of the file has the application_id, or the file is empty or
		// will be after a rollback. The first transaction sets the application_id, and ends
		// before the file is in WAL mode. So InspectFile recognizes the file by its header,
		// whenever the process crashes.
		for _, statement := range []string{
			`BEGIN`, // not BEGIN IMMEDIATE, which would write a header without these settings
			`PRAGMA auto_vacuum = INCREMENTAL`,
			fmt.Sprintf(`PRAGMA application_id = %d`, ApplicationID),
			`COMMIT`,
			`PRAGMA journal_mode = WAL`,
		} {
			if err := s.exec(ctx, statement); err != nil {
				return nil, fmt.Errorf("make %s: %w", path, err)
			}
		}
	}
	return s, nil
}

// SQLiteDSN returns the URI of the database file at path, without parameters.
func SQLiteDSN(path string) string {
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath()}).String()
}

func (s *sqliteConn) begin(ctx context.Context) error {
	if s.lock == nil {
		return s.exec(ctx, `BEGIN`) // Status only reads, and must not block other processes
	}
	return s.exec(ctx, `BEGIN IMMEDIATE`)
}

// exclude has nothing to do: the connection holds the lock of the file.
func (s *sqliteConn) exclude(context.Context) error { return nil }

func (s *sqliteConn) count(ctx context.Context) (objects, changes int64, err error) {
	err = s.conn.QueryRowContext(ctx, selectCounts).Scan(&objects, &changes)
	return objects, changes, err
}

func (s *sqliteConn) end(ctx context.Context, keep bool) error {
	if keep {
		return s.exec(ctx, `COMMIT`)
	}
	return s.exec(ctx, `ROLLBACK`)
}

func (s *sqliteConn) exec(ctx context.Context, text string, arguments ...any) error {
	_, err := s.conn.ExecContext(ctx, text, arguments...)
	return err
}

func (s *sqliteConn) schema(ctx context.Context) (Schema, error) { return SQLiteSchema(ctx, s.conn) }

// Close closes the connection, and releases the lock.
func (s *sqliteConn) Close() error {
	var errs []error
	if s.conn != nil {
		errs = append(errs, s.conn.Close())
	}
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// ApplicationID marks byre's databases in SQLite's file header: "byre" in ASCII.
const ApplicationID = 0x62797265

// ErrForeign means that the file is not a database of byre.
var ErrForeign = errors.New("not a byre database")

// InUseError means that another process uses the database.
type InUseError struct {
	// Path names the database: its file, or for PostgreSQL its name.
	Path string
	// PID is the process ID of the other process; 0 if it is not known.
	PID int
}

// Error implements error.
func (e *InUseError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("%s is in use by another byre process", e.Path)
	}
	return fmt.Sprintf("%s is in use by another byre process (pid %d)", e.Path, e.PID)
}

// LockSuffix is the suffix of the lock's file.
const LockSuffix = ".lock"

// FileLock is the lock of one database. Close releases it.
type FileLock struct {
	// Path is the path of the database without symbolic links. The holder opens this path,
	// so that changing a link meanwhile does not lead it to another file.
	Path string
	file *os.File
}

// AcquireFile takes the lock of the database at path. It fails with an *InUseError, without waiting, if
// another process or this one holds the lock. The directory of the database must exist; the database
// need not.
//
// Invariant: all paths of one file lead to the same lock, because Acquire resolves symbolic links.
// Otherwise two processes could write to one database, each with its own counters in memory.
func AcquireFile(path string) (*FileLock, error) {
	l, err := acquire(path)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(writePID(l.file), checkWritable(l.Path)); err != nil {
		l.file.Close()
		return nil, fmt.Errorf("lock database: %w", err)
	}
	return l, nil
}

// WithFileLock calls do while it holds the lock that Acquire takes. It writes nothing to the lock's file, for which a
// full disk has no space.
func WithFileLock(path string, do func() error) error {
	l, err := acquire(path)
	if err != nil {
		return err
	}
	return errors.Join(do(), l.Close())
}

// acquire is Acquire, which leaves the file as it is.
func acquire(path string) (*FileLock, error) {
	path, err := ResolveFile(path)
	if err != nil {
		return nil, fmt.Errorf("lock database: %w", err)
	}
	file, err := OpenOwned(path+LockSuffix, os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock database: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer file.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock database: %w", err)
		}
		return nil, &InUseError{Path: path, PID: readPID(file)}
	}
	return &FileLock{Path: path, file: file}, nil
}

// Identity names the lock on this boot of the system: a process that has a lock of this name has the lock of every
// process before that had one of the same name. A copy of the file has another one, and so has the lock on another
// machine. It is empty where the system does not tell.
func (l *FileLock) Identity() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	var stat syscall.Stat_t
	if err != nil || syscall.Fstat(int(l.file.Fd()), &stat) != nil {
		return ""
	}
	return fmt.Sprintf("%s/%d/%d", strings.TrimSpace(string(boot)), stat.Dev, stat.Ino)
}

// Close releases the lock. It does not remove the lock file: otherwise two processes could lock two
// files of the same name, one after the other. It unlocks explicitly, because closing the file is
// not enough: a child process that is being started holds a copy of the descriptor until it executes
// its program.
func (l *FileLock) Close() error {
	return errors.Join(syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN), l.file.Close())
}

// checkWritable fails if the file exists and can't be written. The caller holds the lock, so that
// SQLite does not have the file open in this process: closing the file here would release SQLite's
// own locks.
func checkWritable(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s can't be written (%w): make it writable for byre's user", path, errors.Unwrap(err))
	}
	return file.Close()
}

// maxLinks bounds a chain of symbolic links, as Linux does.
const maxLinks = 40

// ResolveFile returns the absolute path without symbolic links, of its directories and of the file. The
// file need not exist.
func ResolveFile(path string) (string, error) {
	for range maxLinks {
		absolute, err := filepath.Abs(path)
		if err != nil {
			return "", err
		}
		dir, err := filepath.EvalSymlinks(filepath.Dir(absolute))
		if err != nil {
			return "", err
		}
		path = filepath.Join(dir, filepath.Base(absolute))
		target, err := os.Readlink(path)
		switch {
		case err != nil: // it is no link, or does not exist
			return path, nil
		case filepath.IsAbs(target):
			path = target
		default:
			path = filepath.Join(dir, target)
		}
	}
	return "", &os.PathError{Op: "resolve", Path: path, Err: syscall.ELOOP}
}

// writePID writes the process ID of the holder to the lock file.
func writePID(file *os.File) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := fmt.Fprintln(file, os.Getpid())
	return err
}

// readPID reads the process ID of the holder from the lock file; 0 if it can't.
func readPID(file *os.File) (pid int) {
	_, _ = fmt.Fscan(file, &pid)
	return pid
}

// InspectFile reads the header of the file at path without opening it as a database. fresh is true if
// there is no file, if it is empty, or if its first transaction did not complete, which SQLite rolls
// back. Inspect fails with ErrForeign if the file is not a database of byre. A process that has the
// file open must not call it: closing the file releases SQLite's own locks.
func InspectFile(path string) (fresh bool, err error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("open database: %w", err)
	}
	defer file.Close()
	// https://sqlite.org/fileformat2.html#the_database_header
	var header [100]byte
	switch _, err := io.ReadFull(file, header[:]); {
	case errors.Is(err, io.EOF):
		return true, nil
	case err != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return false, fmt.Errorf("read database: %w", err)
	}
	isOurs := string(header[:16]) == "SQLite format 3\x00" && binary.BigEndian.Uint32(header[68:72]) == ApplicationID
	if isOurs || header == [100]byte{} {
		if wasEmpty, err := journalOfEmptyFile(path); err != nil || wasEmpty {
			return wasEmpty, err
		}
	}
	if !isOurs {
		return false, fmt.Errorf("%s: %w", path, ErrForeign)
	}
	return false, nil
}

// journalOfEmptyFile reports whether there is a rollback journal beside the file with which SQLite
// makes the file empty again. SQLite syncs the journal before it writes to the file.
func journalOfEmptyFile(path string) (bool, error) {
	file, err := os.Open(path + "-journal")
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open database: %w", err)
	}
	defer file.Close()
	// https://sqlite.org/fileformat2.html#the_rollback_journal
	var header [28]byte
	if _, err := io.ReadFull(file, header[:]); err != nil {
		return false, nil //nolint:nilerr // it is no journal, and SQLite will not roll back
	}
	pages := binary.BigEndian.Uint32(header[16:20])
	return string(header[:8]) == "\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" && pages == 0, nil
}
