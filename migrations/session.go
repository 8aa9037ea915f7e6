package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5"
)

// The table byre_schema_version has the version in one row. It exists once the first step was run.
// Its name distinguishes databases of byre from those of other programs. The table byre_schema had
// the version before the numbers of the steps began anew.
const (
	createVersionTable = `CREATE TABLE IF NOT EXISTS byre_schema_version (version bigint NOT NULL, dirty boolean NOT NULL)`
	dropVersionTable   = `DROP TABLE IF EXISTS byre_schema_version`
	clearVersion       = `DELETE FROM byre_schema_version`
	insertVersion      = `INSERT INTO byre_schema_version (version, dirty) VALUES ($1, $2)`

	// sqliteTables and postgresTables select which tables exist: byre_schema_version, store and
	// byre_schema.
	sqliteTables = `
SELECT count(*) FILTER (WHERE name = 'byre_schema_version') > 0, count(*) FILTER (WHERE name = 'store') > 0,
       count(*) FILTER (WHERE name = 'byre_schema') > 0
FROM sqlite_schema WHERE type = 'table'`
	postgresTables = `
SELECT to_regclass(quote_ident(current_schema()) || '.byre_schema_version') IS NOT NULL,
       to_regclass(quote_ident(current_schema()) || '.store') IS NOT NULL,
       to_regclass(quote_ident(current_schema()) || '.byre_schema') IS NOT NULL`

	selectVersion    = `SELECT version, dirty FROM byre_schema_version`
	selectUnreleased = `SELECT version FROM byre_schema`
	selectLeast      = `SELECT least_version FROM store WHERE id = 1`
)

// Schema is what a database says of its schema. That of an empty database is zero.
type Schema struct {
	Version Version
	// Least is the latest version of the oldest program that may use the database: a step
	// that such programs need not know leaves it as it is.
	Least Version
	// IsDirty is true in the middle of a step.
	IsDirty bool
}

// row is one row of a result; *sql.Row and pgx.Row implement it.
type row interface {
	Scan(destinations ...any) error
}

// SQLiteSchema returns the schema of the database that db is a connection to. It fails with
// ErrUnreleased.
func SQLiteSchema(ctx context.Context, db interface {
	QueryRowContext(ctx context.Context, query string, arguments ...any) *sql.Row
}) (Schema, error) {
	return readSchema(sqliteTables, func(query string) row { return db.QueryRowContext(ctx, query) })
}

// PostgresSchema returns the schema in the current schema of a connection. It fails with
// ErrUnreleased.
func PostgresSchema(ctx context.Context, conn *pgx.Conn) (Schema, error) {
	return readSchema(postgresTables, func(query string) row { return conn.QueryRow(ctx, query) })
}

func readSchema(tables string, query func(string) row) (s Schema, err error) {
	var hasVersion, hasStore, isUnreleased bool
	switch err := query(tables).Scan(&hasVersion, &hasStore, &isUnreleased); {
	case err != nil:
		return s, err
	case isUnreleased:
		if err := query(selectUnreleased).Scan(&s.Version); err != nil {
			return s, err
		}
		return s, fmt.Errorf("%w: schema %d in the table byre_schema", ErrUnreleased, s.Version)
	case !hasVersion:
		return s, nil
	}
	err = query(selectVersion).Scan(&s.Version, &s.IsDirty)
	if errors.Is(err, sql.ErrNoRows) { // pgx.ErrNoRows is sql.ErrNoRows
		return Schema{}, nil
	}
	if err == nil && hasStore {
		err = query(selectLeast).Scan(&s.Least)
	}
	return s, err
}

// libraryVersion returns a schema as golang-migrate's database.Driver does.
func libraryVersion(s Schema, err error) (version int, dirty bool, _ error) {
	if err != nil {
		return 0, false, err
	}
	if s.Version == 0 {
		return database.NilVersion, false, nil
	}
	return int(s.Version), s.IsDirty, nil
}

var errUnused = errors.New("migrations: not a part of a migration")

// inTransaction has the methods of golang-migrate's database.Driver that both sessions share. Lock
// does nothing, because the transaction of a session holds the lock. golang-migrate does not call
// Open and Drop.
type inTransaction struct{}

func (inTransaction) Open(string) (database.Driver, error) { return nil, errUnused }
func (inTransaction) Lock() error                          { return nil }
func (inTransaction) Unlock() error                        { return nil }
func (inTransaction) Drop() error                          { return errUnused }
