// Package watchtest runs a store with its feed for tests of the packages that use them.
package dbtest

import (
	"context"
	"testing"

	"byre/sqlstore"
	"byre/watch"
)

// RunStore runs a store and its feed on a driver, as one server does, until the test ends. The caller
// closes the driver.
func RunStore(t testing.TB, driver sqlstore.Driver, opts watch.Options) (*sqlstore.Store, *watch.Feed) {
	t.Helper()
	feed := watch.New(driver, opts)
	store := sqlstore.New(driver, sqlstore.Options{Publish: feed.Publish})
	Serve(t, "store", store.Run)
	Serve(t, "feed", feed.Run)
	return store, feed
}

// Serve runs a service until the test ends, and fails the test if run returns an error. Services
// end in the reverse order of the calls.
func Serve(t testing.TB, name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
}
