package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"byre/sqlstore"
)

// start runs a Store on the driver until stop is called.
func start(f fixture, options sqlstore.Options) (store *sqlstore.Store, stop func()) {
	store = sqlstore.New(f.Driver, options)
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := store.Run(ctx); err != nil {
			f.Errorf("run: %v", err)
		}
	})
	return store, func() { cancel(); running.Wait() }
}

// recorder records published changes, and checks that they are committed and in order.
type recorder struct {
	f       fixture
	mu      sync.Mutex
	changes []sqlstore.Change
}

func (r *recorder) publish(changes []sqlstore.Change) {
	state := r.f.state()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range changes {
		if c.Revision > state.Revision {
			r.f.Errorf("published revision %d before it was committed (%d)", c.Revision, state.Revision)
		}
		if n := len(r.changes); n > 0 && r.changes[n-1].Revision >= c.Revision {
			r.f.Errorf("published %d after %d", c.Revision, r.changes[n-1].Revision)
		}
		r.changes = append(r.changes, c)
	}
}

func (r *recorder) has(revision int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.changes {
		if c.Revision == revision {
			return true
		}
	}
	return false
}

// Many writers commit at the same time. Each gets the outcome of its own write, after its change was
// published, and the revisions are dense.
func testStoreBatches(f fixture) {
	published := &recorder{f: f}
	store, stop := start(f, sqlstore.Options{Publish: published.publish, BatchWrites: 7, BatchBytes: 50})
	const writers, each = 16, 12
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			k := key("n", fmt.Sprint(i%4)) // four writers write each key
			for range each {
				current, _, err := store.Get(f.Context(), k)
				w := create(k, "v")
				if err == nil {
					w = update(k, current.Revision, "w")
				}
				w.Attributes = &sqlstore.Attributes{View: fmt.Sprint(i)}
				c, err := store.Commit(f.Context(), w)
				switch {
				case errors.Is(err, sqlstore.ErrConflict), errors.Is(err, sqlstore.ErrExists):
				case err != nil:
					f.Errorf("commit: %v", err)
				case c.Attributes != w.Attributes || c.New.Key != k || (c.Old == nil) != (c.Op == sqlstore.Create):
					f.Errorf("change is another's: %+v", c)
				case !published.has(c.Revision):
					f.Errorf("answered revision %d before it was published", c.Revision)
				}
			}
		})
	}
	all.Wait()
	stop()
	if got, want := int64(len(published.changes)), f.state().Revision; got != want {
		f.Errorf("published %d changes of %d", got, want)
	}
	for i, c := range published.changes {
		if c.Revision != int64(i+1) {
			f.Fatalf("change %d has revision %d", i, c.Revision)
		}
	}
}

func testStoreExpires(f fixture) {
	deleted := make(chan sqlstore.Change, 10)
	store, stop := start(f, sqlstore.Options{
		ExpireInterval: time.Millisecond,
		Publish: func(changes []sqlstore.Change) {
			for _, c := range changes {
				if c.Op == sqlstore.Delete {
					deleted <- c
				}
			}
		},
	})
	defer stop()
	w := create(key("n", "short"), "v")
	w.Expires = time.Now().Add(20 * time.Millisecond)
	if _, err := store.Commit(f.Context(), w); err != nil {
		f.Fatal(err)
	}
	long := create(key("n", "long"), "v")
	long.Expires = time.Now().Add(anHour)
	if _, err := store.Commit(f.Context(), long); err != nil {
		f.Fatal(err)
	}
	c := <-deleted
	if c.New.Key != w.Key || c.Author.Verb != "expire" || c.Time.Before(w.Expires.Truncate(time.Microsecond)) {
		f.Errorf("expired: %+v", c)
	}
	if _, _, err := store.Get(f.Context(), long.Key); err != nil {
		f.Errorf("the other: %v", err)
	}
}

func testStoreRetention(f fixture) {
	for i := range 30 {
		f.revision(create(key("n", fmt.Sprint(i)), "v"))
	}
	store, stop := start(f, sqlstore.Options{Retention: anHour, RetentionChanges: 10, CompactInterval: time.Millisecond})
	Eventually(f, "the number of changes", func() bool { return f.state().Compacted == 20 })
	stop()
	if err := store.Compact(f.Context(), 22); err != nil || f.state().Compacted != 22 {
		f.Errorf("compact: %v, %+v", err, f.state())
	}
	// By age: with a clock that is nearly an hour ahead, all changes are soon an hour old.
	f.Driver = &shifted{Driver: f.Driver, by: anHour - time.Millisecond}
	_, stop = start(f, sqlstore.Options{Retention: anHour, CompactInterval: time.Millisecond})
	Eventually(f, "the age of changes", func() bool { return f.state().Compacted == 30 })
	stop()
}

// patience bounds the suite's waits for other goroutines. It is far longer than a busy machine takes.
const patience = time.Minute

func testStoreShutdown(f fixture) {
	store, stop := start(f, sqlstore.Options{})
	if _, err := store.Commit(f.Context(), create(key("n", "a"), "v")); err != nil {
		f.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(f.Context())
	cancel()
	if _, err := store.Commit(cancelled, create(key("n", "b"), "v")); !errors.Is(err, context.Canceled) {
		f.Errorf("cancelled commit: %v", err)
	}
	stop()
	if _, err := store.Commit(f.Context(), create(key("n", "c"), "v")); !errors.Is(err, sqlstore.ErrClosed) {
		f.Errorf("commit after the end: %v", err)
	}
	if state := f.state(); state.Revision != 1 {
		f.Errorf("revision %d, want 1", state.Revision)
	}
}
