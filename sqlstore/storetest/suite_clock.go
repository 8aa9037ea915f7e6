package storetest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"byre/sqlstore"
)

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
	_, stop := start(f, sqlstore.Options{Retention: anHour, CompactInterval: time.Millisecond, ExpireInterval: time.Millisecond})
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
