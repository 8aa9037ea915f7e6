package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"

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

// PostgresSchema returns the schema in the current schema of a connection, which is zero if the schema that the
// endpoint names does not exist. It fails with ErrUnreleased.
func PostgresSchema(ctx context.Context, conn *pgx.Conn) (Schema, error) {
	if exists, err := HasSchema(ctx, conn); err != nil || !exists {
		return Schema{}, err
	}
	s, err := readSchema(postgresTables, func(query string) row { return conn.QueryRow(ctx, query) })
	if errors.Is(err, ErrUnreleased) {
		return s, err
	}
	return s, Explain(conn.Config(), err)
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

// connection is a connection to a database of one dialect.
type connection interface {
	// begin begins the transaction of one migration and waits for the lock of the migration, which the
	// transaction holds. It fails with ErrForeign, and changes nothing.
	begin(ctx context.Context) error
	// end commits the transaction if keep is true, and otherwise rolls it back.
	end(ctx context.Context, keep bool) error
	// exclude fails with an *InUseError if another process uses the database, and keeps
	// other processes from using it until end.
	exclude(ctx context.Context) error
	// schema returns what the database says of its schema.
	schema(ctx context.Context) (Schema, error)
	// exec executes one statement; without arguments, a text that may have several.
	exec(ctx context.Context, text string, arguments ...any) error
	// count counts the rows of objects and of changes.
	count(ctx context.Context) (objects, changes int64, err error)
	Close() error
}

const selectCounts = `SELECT (SELECT count(*) FROM current_objects), (SELECT count(*) FROM undo_log)`

// session is a connection with the transaction of one migration. It implements golang-migrate's
// database.Driver. Lock does nothing, because the transaction holds the lock. golang-migrate does not
// call Open and Drop.
type session struct {
	connection
	ctx     context.Context //nolint:containedctx // golang-migrate's interface has no context.
	dialect Dialect
	latest  Version
	onStep  []func(Step)
}

var errUnused = errors.New("migrations: not a part of a migration")

// Open implements database.Driver.
func (*session) Open(string) (database.Driver, error) { return nil, errUnused }

// Lock implements database.Driver.
func (*session) Lock() error { return nil }

// Unlock implements database.Driver.
func (*session) Unlock() error { return nil }

// Drop implements database.Driver.
func (*session) Drop() error { return errUnused }

// Run implements database.Driver.
func (s *session) Run(migration io.Reader) error {
	text, err := io.ReadAll(migration)
	if err != nil {
		return err
	}
	return s.exec(s.ctx, string(text))
}

// Version implements database.Driver.
func (s *session) Version() (version int, dirty bool, err error) {
	schema, err := s.schema(s.ctx)
	if err == nil && schema.Version == 0 {
		return database.NilVersion, false, nil
	}
	return int(schema.Version), schema.IsDirty, err
}

// SetVersion implements database.Driver. golang-migrate sets the version that a step leads to,
// dirty, before it runs the step: then SetVersion calls onStep.
func (s *session) SetVersion(version int, dirty bool) error {
	if dirty {
		current, _, err := s.Version()
		if err != nil {
			return err
		}
		for _, call := range s.onStep {
			call(Step{Number: Version(max(current, version)), Latest: s.latest})
		}
	}
	if version == database.NilVersion {
		return s.exec(s.ctx, dropVersionTable)
	}
	create := createVersionTable
	if s.dialect == Postgres {
		create = createVersionTablePostgres
	}
	for _, text := range []string{create, clearVersion} {
		if err := s.exec(s.ctx, text); err != nil {
			return err
		}
	}
	return s.exec(s.ctx, insertVersion, version, dirty)
}
