package postgres_test

import (
	"context"
	"errors"
	"testing"

	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// startPair starts a PostgreSQL server with an asynchronous standby for one test, and migrates
// the database.
func startPair(t *testing.T) (primary, standby *pgtest.Cluster, dsn string) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts PostgreSQL")
	}
	primary, dsn = startCluster(t)
	standby, err := primary.Standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, standby)
	return primary, standby, dsn
}

// haltStandby stops the standby once it has received a revision. What the primary commits
// after that is lost when the standby is promoted.
func haltStandby(t *testing.T, standby *pgtest.Cluster, revision int64) {
	t.Helper()
	storetest.EventuallyDone(t, "replication", func(ctx context.Context) (bool, error) {
		var replicated int64
		err := connect(t, standby.DSN("postgres")).QueryRow(ctx, `SELECT revision FROM counters`).Scan(&replicated)
		return replicated == revision, err
	})
	if err := standby.Halt(); err != nil {
		t.Logf("halt: %v", err)
	}
}

// failOver stops the primary, and starts and promotes the standby.
func failOver(t *testing.T, primary, standby *pgtest.Cluster) {
	t.Helper()
	if err := primary.Halt(); err != nil {
		t.Logf("halt: %v", err)
	}
	if err := errors.Join(standby.Resume(t.Context()), standby.Promote(t.Context())); err != nil {
		t.Fatal(err)
	}
}
