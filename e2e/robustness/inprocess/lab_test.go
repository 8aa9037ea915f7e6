package inprocess

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"byre/e2e/robustness/check"
	"byre/e2e/robustness/tables"
	"byre/e2e/robustness/traffic"
	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/sqlite"
)

// lab is a database with its replicas: one on SQLite, two on PostgreSQL.
type lab struct {
	testing.TB
	kind     string
	address  string // a file or a DSN
	replicas []*Replica
	drivers  []sqlstore.Driver
	fault    fault
	rounds   int
}

// fault wraps layers of the first replica to make them faulty; the zero value wraps none.
type fault struct {
	layers func(sqlstore.Driver) Layers
	driver func(sqlstore.Driver) sqlstore.Driver
	during func(context.Context, *lab) error
}

func newLab(t testing.TB, kind string, f fault) *lab {
	t.Helper()
	l := &lab{TB: t, kind: kind, fault: f}
	endpoint := ""
	n := 1
	if kind == tables.Postgres {
		l.address = pgtest.DSN(t)
		endpoint, n = l.address, 2
	} else {
		l.address = filepath.Join(t.TempDir(), "byre.db")
		endpoint = "sqlite://" + l.address
	}
	if _, err := migrations.Up(t.Context(), endpoint); err != nil {
		t.Fatal(err)
	}
	l.drivers = make([]sqlstore.Driver, n)
	for i := range n {
		l.replicas = append(l.replicas, &Replica{Name: fmt.Sprintf("store-%d", i)})
		if err := l.start(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for i := range l.replicas {
			if err := l.stop(i); err != nil {
				t.Error(err)
			}
		}
	})
	return l
}

func (l *lab) connect(ctx context.Context) (*tables.Connection, error) {
	return tables.Connect(ctx, l.kind, l.address)
}

func (l *lab) exec(ctx context.Context, statement string) error {
	return tables.Exec(ctx, l.kind, l.address, statement)
}

// start opens the database for a replica and starts its store.
func (l *lab) start(ctx context.Context, i int) error {
	var driver sqlstore.Driver
	var err error
	if l.kind == tables.Postgres {
		driver, err = postgres.Open(ctx, l.address, postgres.Options{})
	} else {
		driver, err = sqlite.Open(ctx, l.address, sqlite.Options{})
	}
	if err != nil {
		return err
	}
	l.drivers[i] = driver
	var layers Layers
	if i == 0 && l.fault.driver != nil {
		driver = l.fault.driver(driver)
	}
	if i == 0 && l.fault.layers != nil {
		layers = l.fault.layers(driver)
	}
	l.replicas[i].Use(Start(driver, layers))
	return nil
}

// stop ends a replica's store and closes its database.
func (l *lab) stop(i int) error {
	l.replicas[i].Store().Stop()
	return l.drivers[i].Close()
}

// round runs half a second of traffic and judges its history.
func (l *lab) round() ([]check.Violation, error) {
	l.rounds++
	r := Round{
		Replicas: l.replicas, Connect: l.connect, Namespace: fmt.Sprintf("round-%d", l.rounds), For: 500 * time.Millisecond,
		Options: traffic.Options{Keys: 5, Writers: 2, Watchers: 2, Pause: 2 * time.Millisecond, Timeout: 5 * time.Second,
			Seed: uint64(l.rounds)},
	}
	if l.fault.during != nil {
		r.During = func(ctx context.Context) error { return l.fault.during(ctx, l) }
	}
	h, violations, err := r.Run(l.Context())
	if err == nil {
		l.Logf("round %d: %d operations, %d watches", l.rounds, len(h.Operations), len(h.Watches))
	}
	return violations, err
}

// everyNth returns a function that returns true at each n-th call.
func everyNth(n int64) func() bool {
	var calls atomic.Int64
	return func() bool { return calls.Add(1)%n == 0 }
}
