package main

import (
	"context"
	"errors"
	"fmt"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/sqlite"
)

// readDatabase reads the whole store of an endpoint, which may be in use.
func readDatabase(ctx context.Context, endpoint string, read func(sqlstore.Snapshot) error) error {
	return withDatabase(endpoint,
		func(path string) error { return sqlite.ReadSnapshot(ctx, path, read) },
		func(dsn string) error { return postgres.ReadSnapshot(ctx, dsn, read) })
}

// readIdleDatabase reads the whole store of an endpoint that no process serves.
func readIdleDatabase(ctx context.Context, endpoint string, read func(sqlstore.Snapshot) error) error {
	return withDatabase(endpoint,
		func(path string) error { return sqlite.ReadIdle(ctx, path, read) },
		func(dsn string) error { return postgres.ReadIdle(ctx, dsn, read) })
}

// loadDatabase fills the database of an endpoint, which it makes if there is none.
func loadDatabase(ctx context.Context, endpoint string, s sqlstore.Snapshot) error {
	err := withDatabase(endpoint,
		func(path string) error { return sqlite.Load(ctx, path, s) },
		func(dsn string) error { return postgres.Load(ctx, dsn, s) })
	var inUse *migrations.InUseError
	if errors.As(err, &inUse) {
		return fmt.Errorf("%w: stop it, or name another database", err)
	}
	return err
}

func withDatabase(endpoint string, onSQLite, onPostgres func(dsn string) error) error {
	dialect, dsn, err := migrations.ParseEndpoint(endpoint)
	switch {
	case err != nil:
		return err
	case dialect == migrations.SQLite:
		return onSQLite(dsn)
	case dialect == migrations.Postgres:
		return onPostgres(dsn)
	}
	return fmt.Errorf("no driver for %s", dialect)
}
