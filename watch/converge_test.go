package watch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"byre/sqlstore"
)

// Readers and writers run concurrently: every subscriber ends with the state of the store.
func TestSubscription_ConvergesToTheStore(t *testing.T) {
	t.Parallel()
	const writers, writes, subscribers = 3, 400, 12
	f := startShared(t, Options{Interval: 5 * time.Millisecond, RingEvents: 16})
	var mu sync.Mutex // changes of the model are read in order
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			for range writes {
				mu.Lock()
				key := pod(fmt.Sprint(r.IntN(3)), fmt.Sprint(r.IntN(20)))
				if w == 0 { // another process
					f.put(key, fmt.Sprint(r.IntN(5)))
				} else {
					f.write(key, fmt.Sprint(r.IntN(5)))
				}
				mu.Unlock()
			}
		})
	}
	for i := range subscribers {
		all.Go(func() { follow(f, i, writers*writes) })
	}
	all.Wait()
}

// follow maintains a copy of one namespace (or of all) from a subscription and compares it
// with the store at the end.
func follow(f *fixture, i, end int) {
	want := Interest{Resource: pods}
	if i%2 == 1 {
		want.Namespace = fmt.Sprint(i % 3)
	}
	snapshot := f.snapshot()
	got := map[sqlstore.Key]string{}
	for e := range snapshot.All(want.Namespace, nil) {
		got[e.Key] = string(e.Value())
	}
	sub, err := f.Subscribe(context.Background(), want, snapshot.Revision())
	if err != nil {
		f.t.Error(err)
		return
	}
	defer sub.Close()
	last := snapshot.Revision()
	for upTo := last; upTo < int64(end); {
		var events []Event
		if events, upTo, err = sub.Poll(context.Background()); err != nil {
			f.t.Error(err)
			return
		}
		for _, ev := range events {
			if ev.Revision <= last {
				f.t.Errorf("%d came after %d", ev.Revision, last)
			}
			last = ev.Revision
			if old := got[ev.Key()]; ev.Old != nil && string(ev.Old.Value()) != old {
				f.t.Errorf("%d replaced %q, but %q was there", ev.Revision, ev.Old.Value(), old)
			}
			got[ev.Key()] = string(ev.New.Value())
		}
		if len(events) == 0 && upTo < int64(end) {
			select {
			case <-sub.Ready():
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	n := 0
	for e := range f.snapshot().All(want.Namespace, nil) {
		n++
		if got[e.Key] != string(e.Value()) {
			f.t.Errorf("%v is %q, want %q", e.Key, got[e.Key], e.Value())
		}
	}
	if n != len(got) {
		f.t.Errorf("%d records, want %d", len(got), n)
	}
}
