package etcd

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"byre/migrations"
)

// ErrNotKine means that the database has no table kine.
var ErrNotKine = errors.New("the database has no table of kine")

// The statements, for both databases.
const (
	selectState = `SELECT coalesce(max(id), 0), (SELECT count(*) FROM kine k WHERE k.id IN (SELECT max(id) FROM kine GROUP BY name) AND k.deleted = 0) FROM kine`

	// In the row of a create, create_revision is 0 or NULL: its create revision is its id.
	selectLive = `
SELECT k.id, k.name, CASE WHEN k.created <> 0 THEN k.id ELSE coalesce(k.create_revision, 0) END, coalesce(k.lease, 0), k.value
FROM kine k WHERE k.id IN (SELECT max(id) FROM kine GROUP BY name) AND k.deleted = 0
ORDER BY k.id`
)

// openTimeout bounds the connection and the first query.
const openTimeout = time.Minute

// KineDatabase is an open database of kine.
type KineDatabase struct {
	db       *sql.DB
	tx       *sql.Tx
	revision int64
	live     int
}

// OpenKine opens the database at an endpoint, sqlite:///PATH or postgres://..., and begins its
// transaction. The transaction ends with ctx. Open fails with ErrNotKine if the database has
// no table of kine.
func OpenKine(ctx context.Context, endpoint string) (_ *KineDatabase, err error) {
	dialect, dsn, err := migrations.ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	db, options, err := connect(dialect, dsn)
	if err != nil {
		return nil, err
	}
	d := &KineDatabase{db: db}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	// The transaction outlives this call, so that it must not get a context with the
	// timeout below.
	if d.tx, err = db.BeginTx(ctx, options); err != nil {
		return nil, err
	}
	first, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if err := d.tx.QueryRowContext(first, selectState).Scan(&d.revision, &d.live); err != nil {
		if isNoTable(ctx, d.db, dialect, err) {
			return nil, ErrNotKine
		}
		return nil, err
	}
	return d, nil
}

func connect(dialect migrations.Dialect, dsn string) (*sql.DB, *sql.TxOptions, error) {
	if dialect == migrations.Postgres {
		config, err := pgx.ParseConfig(dsn)
		if err != nil {
			return nil, nil, errors.New("endpoint: not a connection string of PostgreSQL")
		}
		if config.ConnectTimeout == 0 {
			config.ConnectTimeout = openTimeout
		}
		if u, err := url.Parse(dsn); err == nil && u.Scheme != "" && strings.Trim(u.Path, "/") == "" &&
			!u.Query().Has("dbname") {
			config.Database = "kubernetes" // as kine
		}
		return stdlib.OpenDB(*config), &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}, nil
	}
	if _, err := os.Stat(dsn); err != nil {
		return nil, nil, err
	}
	// query_only rather than mode=ro, with which SQLite may fail to read a WAL that a
	// crash has left beside the file.
	db, err := sql.Open("sqlite", migrations.SQLiteDSN(dsn)+"?mode=rw&_pragma=busy_timeout(10000)&_pragma=query_only(1)")
	return db, nil, err
}

// isNoTable reports whether a query failed with err because there is no table kine.
func isNoTable(ctx context.Context, db *sql.DB, dialect migrations.Dialect, err error) bool {
	if dialect == migrations.Postgres {
		var e *pgconn.PgError
		return errors.As(err, &e) && e.Code == "42P01" // undefined_table
	}
	var tables int
	return db.QueryRowContext(ctx,
		`SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'kine'`).Scan(&tables) == nil && tables == 0
}

// Revision returns the last revision of kine.
func (d *KineDatabase) Revision() int64 { return d.revision }

// Len returns the number of keys that exist.
func (d *KineDatabase) Len() int { return d.live }

// Each calls yield for each key that exists, in the order of their revisions. It stops with
// the first error of yield.
func (d *KineDatabase) Each(ctx context.Context, yield func(KeyValue) error) error {
	rows, err := d.tx.QueryContext(ctx, selectLive)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var kv KeyValue
		var ttl int64
		if err := rows.Scan(&kv.Revision, &kv.Key, &kv.Created, &ttl, &kv.Value); err != nil {
			return err
		}
		if kv.Created < 1 || kv.Created > kv.Revision {
			return fmt.Errorf("row %d of the table kine: create_revision %d", kv.Revision, kv.Created)
		}
		kv.TTL = time.Duration(max(ttl, 0)) * time.Second
		if err := yield(kv); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Close ends the transaction and closes the database.
func (d *KineDatabase) Close() error {
	var err error
	if d.tx != nil {
		if err = d.tx.Rollback(); errors.Is(err, sql.ErrTxDone) {
			err = nil
		}
	}
	return errors.Join(err, d.db.Close())
}
