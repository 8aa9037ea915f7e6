package tables

import (
	"context"
	"database/sql"
	"net/url"

	"github.com/jackc/pgx/v5"
	_ "modernc.org/sqlite" // the driver

	"byre/e2e/robustness/history"
)

// The kinds of databases.
const (
	SQLite   = "sqlite"
	Postgres = "postgres"
)

// Connection reads the database, past byre.
type Connection struct {
	postgres *pgx.Conn
	sqlite   *sql.DB
}

// Connect connects to a kind of database: a file of SQLite, or the DSN of a PostgreSQL.
func Connect(ctx context.Context, kind, address string) (*Connection, error) {
	// The connection is read-only. SQLite empties the write-ahead log when the last writable
	// connection is closed, which would hide what a crash has left.
	return connect(ctx, kind, address, "mode=ro&")
}

// Exec runs a statement on a connection of its own.
func Exec(ctx context.Context, kind, address, statement string) error {
	c, err := connect(ctx, kind, address, "")
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	if c.postgres != nil {
		_, err = c.postgres.Exec(ctx, statement)
	} else {
		_, err = c.sqlite.ExecContext(ctx, statement)
	}
	return err
}

func connect(ctx context.Context, kind, address, options string) (*Connection, error) {
	if kind == Postgres {
		conn, err := pgx.Connect(ctx, address)
		if err != nil {
			return nil, err
		}
		return &Connection{postgres: conn}, nil
	}
	file := url.URL{Scheme: "file", Opaque: (&url.URL{Path: address}).EscapedPath(),
		RawQuery: options + "_pragma=busy_timeout(5000)"}
	db, err := sql.Open("sqlite", file.String())
	if err != nil {
		return nil, err
	}
	// One connection: a statement sees what the one before it saw, or later.
	db.SetMaxOpenConns(1)
	return &Connection{sqlite: db}, nil
}

// Close ends the connection.
func (c *Connection) Close(ctx context.Context) {
	// It only read: there is nothing to lose.
	if c.postgres != nil {
		_ = c.postgres.Close(ctx)
		return
	}
	_ = c.sqlite.Close()
}

// Counters are byre's revision and compacted revision.
func (c *Connection) Counters(ctx context.Context) (revision, compacted int64, err error) {
	const query = `SELECT revision, compacted FROM counters`
	if c.postgres != nil {
		err = c.postgres.QueryRow(ctx, query).Scan(&revision, &compacted)
		return revision, compacted, err
	}
	err = c.sqlite.QueryRowContext(ctx, query).Scan(&revision, &compacted)
	return revision, compacted, err
}

// rows is what the rows of both drivers have in common.
type rows interface {
	Next() bool
	Scan(into ...any) error
	Err() error
}

func (c *Connection) query(ctx context.Context, postgres, sqlite string, scan func(rows) error, args ...any) error {
	var found rows
	if c.postgres != nil {
		rows, err := c.postgres.Query(ctx, postgres, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		found = rows
	} else {
		rows, err := c.sqlite.QueryContext(ctx, sqlite, args...) //nolint:rowserrcheck // checked by found.Err
		if err != nil {
			return err
		}
		defer rows.Close()
		found = rows
	}
	for found.Next() {
		if err := scan(found); err != nil {
			return err
		}
	}
	return found.Err()
}

// Changes are the rows of the log after a revision up to another; those of a namespace's
// ConfigMaps have names.
func (c *Connection) Changes(ctx context.Context, namespace string, after, upTo int64) ([]history.Change, error) {
	const columns = `SELECT revision, op = 'delete', CASE WHEN resource = 'configmaps' AND namespace = `
	const rest = ` THEN name ELSE '' END FROM changes WHERE revision > `
	var all []history.Change
	err := c.query(ctx,
		columns+`$1`+rest+`$2 AND revision <= $3 ORDER BY revision`,
		columns+`?1`+rest+`?2 AND revision <= ?3 ORDER BY revision`,
		func(r rows) error {
			var change history.Change
			if err := r.Scan(&change.Revision, &change.Deletes, &change.Name); err != nil {
				return err
			}
			all = append(all, change)
			return nil
		}, namespace, after, upTo)
	return all, err
}

// Objects are the names and revisions of a namespace's ConfigMaps.
func (c *Connection) Objects(ctx context.Context, namespace string) (map[string]int64, error) {
	const query = `SELECT name, revision FROM objects WHERE resource = 'configmaps' AND namespace = `
	all := map[string]int64{}
	err := c.query(ctx, query+`$1`, query+`?1`, func(r rows) error {
		var name string
		var revision int64
		if err := r.Scan(&name, &revision); err != nil {
			return err
		}
		all[name] = revision
		return nil
	}, namespace)
	return all, err
}

// Values are the stored texts of a resource's objects, by namespace and name.
func (c *Connection) Values(ctx context.Context, group, resource string) (map[string]string, error) {
	const query = `SELECT namespace, name, value FROM objects WHERE "group" = `
	all := map[string]string{}
	err := c.query(ctx, query+`$1 AND resource = $2`, query+`?1 AND resource = ?2`, func(r rows) error {
		var namespace, name, value string
		if err := r.Scan(&namespace, &name, &value); err != nil {
			return err
		}
		all[namespace+"/"+name] = value
		return nil
	}, group, resource)
	return all, err
}
