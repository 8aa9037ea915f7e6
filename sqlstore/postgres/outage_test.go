package postgres_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
)

// The server crashes under load and restarts: acknowledged writes exist, writes that failed
// with ErrUnavailable do not, and the driver reconnects by itself.
func TestOutage_LosesNothingAcknowledged(t *testing.T) {
	t.Parallel()
	pgtest.DSN(t) // skips the test where there is no PostgreSQL
	cluster, err := pgtest.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Logf("stop: %v", err) // the shell reports the signal that ended the server
		}
	})
	dsn := cluster.DSN("postgres")
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	driver, err := postgres.Open(t.Context(), dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer driver.Close()

	var writer sync.WaitGroup
	outcomes := make(map[string]error)
	started := make(chan struct{})
	writer.Go(func() {
		for i := 0; ; i++ {
			if i == 20 {
				close(started)
			}
			name := fmt.Sprint(i)
			_, err := driver.Commit(t.Context(), create(name))
			outcomes[name] = err
			if errors.Is(err, sqlstore.ErrUnavailable) {
				return
			}
			if err != nil && !errors.Is(err, sqlstore.ErrUnknown) {
				t.Errorf("commit during the outage: %v", err)
				return
			}
		}
	})
	<-started
	if err := cluster.Halt(); err != nil {
		t.Logf("halt: %v", err) // the shell reports the signal that ended the server
	}
	writer.Wait()
	if _, err := driver.State(t.Context()); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("state during the outage: %v", err)
	}
	if err := cluster.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	state, err := driver.State(t.Context())
	if err != nil {
		t.Fatalf("state after the outage: %v", err)
	}
	existing := int64(0)
	for name, outcome := range outcomes {
		_, _, err := driver.Get(t.Context(), create(name)[0].Key)
		if err == nil {
			existing++
		}
		if outcome == nil && err != nil || errors.Is(outcome, sqlstore.ErrUnavailable) && !errors.Is(err, sqlstore.ErrNotFound) {
			t.Errorf("%s: commit %v, get %v", name, outcome, err)
		}
	}
	if existing != state.Revision {
		t.Errorf("%d objects at revision %d", existing, state.Revision)
	}
	if o, err := driver.Commit(t.Context(), create("after")); err != nil || o[0].Revision != state.Revision+1 {
		t.Errorf("commit after the outage: %v, %v", o, err)
	}
}
