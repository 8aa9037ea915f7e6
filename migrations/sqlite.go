package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

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
