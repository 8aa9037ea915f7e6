// Package watchtest runs a store with its feed for tests of what stands on them.
package watchtest

import (
	"context"
	"testing"

	"byre/sqlstore"
	"byre/watch"
)

// Run runs a store and its feed over a driver, as one server does, until the
// test ends. The driver stays the caller's.
func Run(t testing.TB, driver sqlstore.Driver, opts watch.Options) (*sqlstore.Store, *watch.Feed) {
	t.Helper()
	feed := watch.New(driver, opts)
	store := sqlstore.New(driver, sqlstore.Options{Publish: feed.Publish})
	Serve(t, "store", store.Run)
	Serve(t, "feed", feed.Run)
	return store, feed
}

// Serve runs a service until the test ends, and reports how it ended if it did
// not end well. What was served last ends first.
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
