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
	if _, err := store.CompactOlder(f.Context(), sqlstore.Compaction{UpTo: 22}); err != nil || f.state().Compacted != 22 {
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

// shifted is a driver whose State tells a clock that is ahead of the right time, or behind it.
// Changes have the right time.
type shifted struct {
	sqlstore.Driver
	mu sync.Mutex
	// by is how far the clock is ahead; negative means behind.
	by time.Duration
	// reads is how often the clock was read since it was set.
	reads int
}

// State tells the time of the clock as it was set before the revision is read. The other way
// round a read that is delayed would tell a revision from before the clock was set, which no
// database does.
func (s *shifted) State(ctx context.Context) (sqlstore.State, error) {
	s.mu.Lock()
	by := s.by
	s.mu.Unlock()
	state, err := s.Driver.State(ctx)
	state.Time = state.Time.Add(by)
	s.mu.Lock()
	defer s.mu.Unlock()
	if by == s.by {
		s.reads++
	}
	return state, err
}

func (s *shifted) set(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.by, s.reads = by, 0
}

func (s *shifted) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

// While a process runs, the database's clock is set forward, by years and more than once, and set
// back. The store deletes no record and compacts no change before its time because of that. Records
// that are written afterwards expire at their time.
func testStoreClock(f fixture) {
	clock := &shifted{Driver: f.Driver}
	f.Driver = clock
	deleted := make(chan sqlstore.Change, 100)
	store, stop := start(f, sqlstore.Options{
		Retention: anHour, CompactInterval: time.Millisecond, ExpireInterval: time.Millisecond,
		Publish: func(changes []sqlstore.Change) {
			for _, c := range changes {
				if c.Op == sqlstore.Delete {
					deleted <- c
				}
			}
		},
	})
	defer stop()
	n := 0
	write := func(expires time.Time) sqlstore.Key {
		w := create(key("n", fmt.Sprint(n)), "v")
		w.Expires = expires
		n++
		if _, err := store.Commit(f.Context(), w); err != nil {
			f.Fatal(err)
		}
		return w.Key
	}
	// awaitReads waits until the store has read the clock a few times.
	awaitReads := func() { Eventually(f, "reads of the clock", func() bool { return clock.count() > 20 }) }
	expect := func(what string, want sqlstore.Key) {
		f.Helper()
		select {
		case c := <-deleted:
			if c.New.Key != want {
				f.Fatalf("%s: %v expired, want %v", what, c.New.Key, want)
			}
		case <-time.After(patience):
			f.Fatalf("%s: %v does not expire", what, want)
		}
	}
	clock.set(0)
	young := write(time.Now().Add(anHour))
	awaitReads()
	for _, by := range []time.Duration{2 * anHour, 10_000 * anHour, -10_000 * anHour, 3 * anHour, 0} {
		clock.set(by)
		awaitReads()
		after := write(time.Now().Add(by + 10*time.Millisecond))
		expect(fmt.Sprint("written when the clock was ahead by ", by), after)
	}
	if _, _, err := store.Get(f.Context(), young); err != nil {
		f.Errorf("the record that expires in an hour: %v", err)
	}
	if state := f.state(); state.Compacted != 0 {
		f.Errorf("history is compacted up to %d", state.Compacted)
	}
}

// The database's clock is set forward, and the history of a busy resource is deleted up to what was
// written afterwards. That of a quiet one is still judged by the time of before.
func testStoreClockOfEach(f fixture) {
	clock := &shifted{Driver: f.Driver}
	f.Driver = clock
	_, stop := start(f,
		sqlstore.Options{Retention: anHour, CompactInterval: time.Millisecond, ExpireInterval: time.Millisecond})
	defer stop()
	clock.set(0)
	awaitReads := func() { Eventually(f, "reads of the clock", func() bool { return clock.count() > 20 }) }
	quiet, busy := sqlstore.Key{Resource: "configmaps", Name: "quiet"}, key("n", "busy")
	f.revision(create(quiet, "v"))
	before := f.revision(create(busy, "v"))
	awaitReads()
	clock.set(2 * anHour)
	awaitReads()
	after := f.revision(update(busy, before, "w"))
	if _, _, err := f.DeleteHistory(f.Context(), sqlstore.Deletion{Of: busy.Of(), UpTo: after, Limit: 10}); err != nil {
		f.Fatal(err)
	}
	clock.set(2 * anHour)
	awaitReads()
	if compacted, err := f.Compacted(f.Context(), quiet.Of()); err != nil || compacted != 0 {
		f.Errorf("the history of the quiet resource is compacted up to %d, %v", compacted, err)
	}
}
