package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/klog/v2"

	"byre/apiserver/options"
	"byre/migrations"
	"byre/migrations/fileowner"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/snapshot"
	"byre/sqlstore/sqlite"
)

// usedDatabase is the file below --data-dir that names the database of --endpoint with which the
// last server was started there. It does not exist where that server used the file in --data-dir.
const usedDatabase = "database"

// recordUsedDatabase records the database of a server, for checkUsedDatabase. A failure, such as
// that of a full disk, is no reason not to serve.
func recordUsedDatabase(store options.StoreOptions, name options.DatabaseName) {
	path := filepath.Join(store.DataDir, usedDatabase)
	var err error
	if store.Endpoint == "" {
		if err = os.Remove(path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	} else if last, _ := os.ReadFile(path); string(last) != name.String()+"\n" {
		var file *os.File
		if file, err = fileowner.Open(path, os.O_WRONLY|os.O_TRUNC, 0o600); err == nil {
			_, err = file.WriteString(name.String() + "\n")
			err = errors.Join(err, file.Close())
		}
	}
	if err != nil {
		klog.ErrorS(err, "\"byre status\" can't know which database this server uses while it is stopped: make the file writable")
	}
}

// checkUsedDatabase fails if no database is named, and the servers of --data-dir use another one
// than the SQLite file there: that file is what a move to another database has left.
func checkUsedDatabase(store options.StoreOptions) error {
	if store.Endpoint != "" {
		return nil
	}
	name, err := os.ReadFile(filepath.Join(store.DataDir, usedDatabase))
	if err != nil {
		return nil //nolint:nilerr // no server has used another database
	}
	return fmt.Errorf("its servers use %s: name it with --endpoint", bytes.TrimSpace(name))
}

// readDatabase reads the whole store of an endpoint, which may be in use.
func readDatabase(ctx context.Context, endpoint string, read func(sqlstore.Snapshot) error) error {
	if err := checkSource(endpoint); err != nil {
		return err
	}
	return readOpenDatabase(ctx, endpoint, read)
}

// readOpenDatabase is readDatabase of a store that this process may serve: checkSource would release the
// locks that it has on a SQLite file.
func readOpenDatabase(ctx context.Context, endpoint string, read func(sqlstore.Snapshot) error) error {
	return withDatabase(endpoint,
		func(path string) error { return sqlite.ReadSnapshot(ctx, path, read) },
		func(dsn string) error { return postgres.ReadSnapshot(ctx, dsn, read) })
}

// readDamagedDatabase is readDatabase, which goes on after a row of SQLite that can't be read: the
// sequences yield a *sqlstore.DamagedRow.
func readDamagedDatabase(ctx context.Context, endpoint string, read func(sqlstore.Snapshot) error) error {
	if err := checkSource(endpoint); err != nil {
		return err
	}
	return withDatabase(endpoint,
		func(path string) error { return sqlite.ReadDamaged(ctx, path, read) },
		func(dsn string) error { return postgres.ReadSnapshot(ctx, dsn, read) })
}

// readIdleDatabase reads the whole store of an endpoint that no process serves.
func readIdleDatabase(ctx context.Context, endpoint string, read func(sqlstore.Snapshot) error) error {
	if err := checkSource(endpoint); err != nil {
		return err
	}
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
	s, loaded := snapshot.Digested(s)
	if err := loadDatabase(ctx, endpoint, s); err != nil {
		return snapshot.Digest{}, err
	}
	p.begin("verifying")
	var held snapshot.Digest
	err := readDatabase(ctx, endpoint, func(h sqlstore.Snapshot) (err error) {
		if h.Revision != s.Revision || h.Compacted != s.Compacted || h.Epoch != s.Epoch {
			return fmt.Errorf("it is at revision %d of epoch %s, want %d of %s", h.Revision, h.Epoch, s.Revision, s.Epoch)
		}
		h = p.follow(h)
		p.total = loaded.Objects + loaded.Changes
		held, err = snapshot.DigestOf(h)
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
