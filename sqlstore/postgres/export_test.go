package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// IsDone is isDone, for tests.
func (d *Driver) IsDone(ctx context.Context, pid uint32) (bool, error) {
	return d.server.isDone(ctx, pid)
}

// IsAlone is isAlone, for tests.
func (d *Driver) IsAlone() bool { return d.isAlone.Load() }

// Translate is translate of a driver without a connection, for tests.
func Translate(err error) error { return (&server{config: &pgx.ConnConfig{}}).translate(err) }

// TranslateCommit is translateCommit of a driver without a connection, for tests.
func TranslateCommit(mode pgx.QueryExecMode, err error, committing bool) error {
	s := &server{config: &pgx.ConnConfig{DefaultQueryExecMode: mode}}
	return s.translateCommit(err, committing)
}
