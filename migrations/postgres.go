package migrations

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// unlimited turns off statement_timeout and, from PostgreSQL 17 on, transaction_timeout: the
	// time of a step depends on the number of rows.
	unlimited = `SELECT set_config(name, '0', true) FROM pg_catalog.pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')`
	// lockMigration keeps other migrations from the schema $1. Migrations of different schemas don't wait for each
	// other.
	lockMigration = `
SELECT pg_advisory_xact_lock(hashtextextended('byre migration ' || coalesce(NULLIF($1::text, ''), current_schema(), ''), 0))`
	// limitLocks bounds how long a step waits for a table, which a pg_dump may hold for an
	// hour. All other sessions that use the table wait behind the step.
	limitLocks = `SELECT set_config('lock_timeout', '10s', true)`
	// countForeign counts the tables in the schema that the migration would use, without
	// those of extensions.
	countForeign = `
SELECT count(*) FROM pg_catalog.pg_class c
WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND c.relkind IN ('r', 'p')
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')`
	// hasLZ4 is true if the server was built with lz4. PostgreSQL 13 has no such setting.
	hasLZ4 = `
SELECT EXISTS (SELECT FROM pg_catalog.pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals))`
	// compressByLZ4 is no part of the step that makes the tables, because SQL has no condition for it.
	// lz4 is several times faster than pglz, the default.
	compressByLZ4 = `
ALTER TABLE current_objects ALTER COLUMN value SET COMPRESSION lz4;
ALTER TABLE undo_log ALTER COLUMN value SET COMPRESSION lz4`
	// createVersionTablePostgres lets the version be replaced where a publication has all tables of the database:
	// PostgreSQL refuses to delete from a published table that has no key.
	createVersionTablePostgres = createVersionTable + `; ALTER TABLE byre_schema_version REPLICA IDENTITY FULL`
	tryUse                     = `SELECT pg_try_advisory_xact_lock(hashtextextended('byre ' || current_schema() || ' ' || $1, 0))`
)

// postgresConn implements connection.
type postgresConn struct {
	conn *pgx.Conn
	tx   pgx.Tx
	// isMissing is true if the endpoint names a schema that does not exist yet.
	isMissing bool
	// wasEmpty is true if the schema had no tables when the migration began.
	wasEmpty bool
}

func openPostgres(ctx context.Context, dsn string) (connection, error) {
	pool, err := ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	config := pool.ConnConfig
	// QueryExecModeExec uses no prepared statements, which a pooler in transaction mode may
	// lose.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn, err := Connect(ctx, config)
	if err != nil {
		return nil, Explain(config, err)
	}
	return &postgresConn{conn: conn}, nil
}

func (s *postgresConn) begin(ctx context.Context) (err error) {
	defer func() { err = s.explain(err) }()
	if s.tx, err = s.conn.Begin(ctx); err != nil {
		return err
	}
	if _, err := s.conn.Exec(ctx, unlimited); err != nil {
		return err
	}
	if _, err := s.conn.Exec(ctx, lockMigration, SchemaName(s.conn.Config())); err != nil {
		return err
	}
	hasSchema, err := HasSchema(ctx, s.conn)
	if err != nil {
		return err
	}
	s.isMissing = !hasSchema
	if _, err := s.conn.Exec(ctx, limitLocks); err != nil {
		return err
	}
	schema, err := s.schema(ctx)
	s.wasEmpty = schema.Version == 0
	if err != nil || !s.wasEmpty || s.isMissing {
		return err
	}
	var tables int
	if err := s.conn.QueryRow(ctx, countForeign).Scan(&tables); err != nil {
		return err
	}
	if tables > 0 {
		return fmt.Errorf("%s has %d tables in the schema that byre would use: %w", DatabaseName(s.conn.Config()), tables,
			ErrForeign)
	}
	return nil
}

func (s *postgresConn) exclude(ctx context.Context) error {
	var free bool
	if err := s.conn.QueryRow(ctx, tryUse, UseLock).Scan(&free); err != nil {
		return s.explain(err)
	}
	if !free {
		return &InUseError{Path: DatabaseName(s.conn.Config())}
	}
	return nil
}

func (s *postgresConn) count(ctx context.Context) (objects, changes int64, err error) {
	err = s.conn.QueryRow(ctx, selectCounts).Scan(&objects, &changes)
	return objects, changes, s.explain(err)
}

func (s *postgresConn) end(ctx context.Context, keep bool) error {
	if !keep {
		return s.tx.Rollback(ctx)
	}
	if err := s.compress(ctx); err != nil {
		return errors.Join(s.explain(err), s.tx.Rollback(ctx))
	}
	return s.tx.Commit(ctx)
}

// compress sets the compression of the values in tables that the migration has made.
func (s *postgresConn) compress(ctx context.Context) error {
	if !s.wasEmpty {
		return nil
	}
	schema, err := s.schema(ctx)
	if err != nil || schema.Version == 0 {
		return err
	}
	var can bool
	if err := s.conn.QueryRow(ctx, hasLZ4).Scan(&can); err != nil || !can {
		return err
	}
	return s.exec(ctx, compressByLZ4)
}

// exec makes the schema if it is missing. It uses the simple query protocol, in which one text may have
// several statements, unless there are arguments.
func (s *postgresConn) exec(ctx context.Context, text string, arguments ...any) error {
	if s.isMissing {
		create := `CREATE SCHEMA ` + pgx.Identifier{SchemaName(s.conn.Config())}.Sanitize()
		if _, err := s.conn.Exec(ctx, create); err != nil {
			return s.explain(err)
		}
		s.isMissing = false
	}
	if len(arguments) == 0 {
		return s.explain(s.conn.PgConn().Exec(ctx, text).Close())
	}
	_, err := s.conn.Exec(ctx, text, arguments...)
	return s.explain(err)
}

// explain adds the server and the next step to an error of the server.
func (s *postgresConn) explain(err error) error {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return Explain(s.conn.Config(), err)
	}
	return err
}

func (s *postgresConn) schema(ctx context.Context) (Schema, error) {
	return PostgresSchema(ctx, s.conn)
}

// Close closes the connection.
func (s *postgresConn) Close() error { return s.conn.Close(context.Background()) }
