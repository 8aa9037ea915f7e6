package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"

	"github.com/golang-migrate/migrate/v4/database"
	// Registers the driver "sqlite" with database/sql.
	_ "modernc.org/sqlite"

	"byre/migrations/dbfile"
	"byre/migrations/fileowner"
)

// sqliteSession implements session.
type sqliteSession struct {
	inTransaction
	//nolint:containedctx // golang-migrate's interface has no context.
	ctx  context.Context
	lock *dbfile.Lock
	db   *sql.DB
	conn *sql.Conn
}

// openSQLite opens the database at path. If there is none, it makes one if change is set, and
// returns nil otherwise.
func openSQLite(ctx context.Context, path string, change bool) (session, error) {
	if change {
		if err := fileowner.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, fmt.Errorf("make the database's folder: %w", err)
		}
	}
	fresh, err := dbfile.Inspect(path)
	if err != nil {
		return nil, err
	}
	if fresh && !change {
		return nil, nil
	}
	s := &sqliteSession{ctx: ctx}
	if change {
		if s.lock, err = dbfile.Acquire(path); err != nil {
			return nil, err
		}
		path = s.lock.Path
	}
	if fresh {
		// The mode is 0600 because the database holds Secrets. SQLite gives the write-ahead
		// log the mode of the file.
		file, err := fileowner.Open(path, os.O_RDWR, 0o600)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("make %s: %w", path, err), s.Close())
		}
		if err := file.Close(); err != nil {
			return nil, errors.Join(fmt.Errorf("make %s: %w", path, err), s.Close())
		}
	}
	s.db, err = sql.Open("sqlite", SQLiteDSN(path)+"?_pragma=busy_timeout(10000)")
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.conn, err = s.db.Conn(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), s.Close())
	}
	if fresh {
		// auto_vacuum must be set before the first table is made; later only a VACUUM could
		// turn it on.
		// Invariant: the header of the file has the application_id, or the file is empty or
		// will be after a rollback. The first transaction sets the application_id, and ends
		// before the file is in WAL mode. So dbfile.Inspect recognizes the file by its header,
		// whenever the process crashes.
		for _, statement := range []string{
			`BEGIN`, // not BEGIN IMMEDIATE, which would write a header without these settings
			`PRAGMA auto_vacuum = INCREMENTAL`,
			fmt.Sprintf(`PRAGMA application_id = %d`, dbfile.ApplicationID),
			`COMMIT`,
			`PRAGMA journal_mode = WAL`,
		} {
			if _, err := s.conn.ExecContext(ctx, statement); err != nil {
				return nil, errors.Join(fmt.Errorf("make %s: %w", path, err), s.Close())
			}
		}
	}
	return s, nil
}

// SQLiteDSN returns the URI of the database file at path, without parameters.
func SQLiteDSN(path string) string {
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath()}).String()
}

func (s *sqliteSession) begin(ctx context.Context) error {
	query := `BEGIN IMMEDIATE`
	if s.lock == nil {
		query = `BEGIN` // Status only reads, and must not block other processes
	}
	_, err := s.conn.ExecContext(ctx, query)
	return err
}

// exclude has nothing to do: the session holds the lock of the file.
func (s *sqliteSession) exclude(context.Context) error { return nil }

func (s *sqliteSession) count(ctx context.Context) (objects, changes int64, err error) {
	err = s.conn.QueryRowContext(ctx, selectCounts).Scan(&objects, &changes)
	return objects, changes, err
}

func (s *sqliteSession) end(ctx context.Context, keep bool) error {
	query := `ROLLBACK`
	if keep {
		query = `COMMIT`
	}
	_, err := s.conn.ExecContext(ctx, query)
	return err
}

// Run implements database.Driver.
func (s *sqliteSession) Run(migration io.Reader) error {
	text, err := io.ReadAll(migration)
	if err != nil {
		return err
	}
	_, err = s.conn.ExecContext(s.ctx, string(text))
	return err
}

// SetVersion implements database.Driver.
func (s *sqliteSession) SetVersion(version int, dirty bool) error {
	if version == database.NilVersion {
		_, err := s.conn.ExecContext(s.ctx, dropVersionTable)
		return err
	}
	if _, err := s.conn.ExecContext(s.ctx, createVersionTable); err != nil {
		return err
	}
	if _, err := s.conn.ExecContext(s.ctx, clearVersion); err != nil {
		return err
	}
	_, err := s.conn.ExecContext(s.ctx, insertVersion, version, dirty)
	return err
}

// Version implements database.Driver.
func (s *sqliteSession) Version() (version int, dirty bool, err error) {
	return libraryVersion(s.schema())
}

func (s *sqliteSession) schema() (Schema, error) { return SQLiteSchema(s.ctx, s.conn) }

// Close implements database.Driver.
func (s *sqliteSession) Close() error {
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
