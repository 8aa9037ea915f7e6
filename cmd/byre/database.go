package main

import (
	"context"
	"errors"
	"fmt"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/snapshot"
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

// loadVerified fills the database of an endpoint, and then counts and hashes what it
// holds.
func loadVerified(ctx context.Context, p *progress, endpoint string, s sqlstore.Snapshot) (snapshot.Digest, error) {
	s, loaded := snapshot.Digested(p.follow(s))
	if err := loadDatabase(ctx, endpoint, s); err != nil {
		return snapshot.Digest{}, err
	}
	p.begin("verifying")
	var held snapshot.Digest
	err := readDatabase(ctx, endpoint, func(h sqlstore.Snapshot) (err error) {
		if h.Revision != s.Revision || h.Compacted != s.Compacted || h.Epoch != s.Epoch {
			return fmt.Errorf("it is at revision %d of epoch %s, want %d of %s", h.Revision, h.Epoch, s.Revision, s.Epoch)
		}
		held, err = snapshot.DigestOf(p.follow(h))
		return err
	})
	switch {
	case err != nil:
		return held, fmt.Errorf("verify what was loaded: %w", err)
	case held != *loaded:
		return held, fmt.Errorf("the database holds %v, and was given %v: do not use it", held, *loaded)
	}
	return held, nil
}
