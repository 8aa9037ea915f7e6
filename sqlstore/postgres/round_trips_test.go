package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/postgres"
)

// TestDriver_OneRoundTripAnOperation: once its statements are prepared, each operation is
// one round trip. A batch includes its lock and its COMMIT, and a page of a list its
// revision and its count.
func TestDriver_OneRoundTripAnOperation(t *testing.T) {
	t.Parallel()
	driver, proxies := openThrough(t, 1, postgres.Options{})
	mustCreate(t, driver, "a")
	n := 0
	list := func(ctx context.Context, q sqlstore.Query) error {
		q.Resource = "pods"
		_, err := driver.List(ctx, q, func(sqlstore.Record) error { return nil })
		return err
	}
	for name, do := range map[string]func(context.Context) error{
		"Commit": func(ctx context.Context) error {
			n++
			_, err := driver.Commit(ctx, append(create(fmt.Sprint(n)), create(fmt.Sprint("other", n))...))
			return err
		},
		"State": func(ctx context.Context) error { _, err := driver.State(ctx); return err },
		"Get": func(ctx context.Context) error {
			_, _, err := driver.Get(ctx, create("a")[0].Key)
			return err
		},
		"List": func(ctx context.Context) error { return list(ctx, sqlstore.Query{}) },
		"page": func(ctx context.Context) error { return list(ctx, sqlstore.Query{Limit: 1, Count: true}) },
		"Changes": func(ctx context.Context) error {
			_, err := driver.Changes(ctx, sqlstore.ChangesQuery{After: 0, Limit: 10})
			return err
		},
		"Notify": func(ctx context.Context) error { return driver.Notify(ctx, 1) },
	} {
		// A pool takes the connection that was used last, and pings one that was idle for a
		// second. Operations that took that long are not counted.
		for counted := 0; counted < 3; {
			began := time.Now()
			if err := do(t.Context()); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			before := proxies[0].RoundTrips()
			if err := do(t.Context()); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if trips := proxies[0].RoundTrips() - before; time.Since(began) < time.Second {
				counted++
				if trips != 1 {
					t.Errorf("%s: %d round trips", name, trips)
				}
			}
		}
	}
}
