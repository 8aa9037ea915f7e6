package watch

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is a model that counts its answers, and whose answers a test can change.
type source struct {
	*storetest.Model
	states  atomic.Int64
	reads   atomic.Int64
	rows    atomic.Int64 // the rows that reads have returned
	mu      sync.Mutex
	state   func(sqlstore.State) sqlstore.State
	changes func([]sqlstore.Change) ([]sqlstore.Change, error)
	listed  func(sqlstore.ListResult) sqlstore.ListResult
	usage   func() // called, without the lock, after Usage has read
}

func (s *source) State(ctx context.Context) (sqlstore.State, error) {
	s.states.Add(1)
	state, err := s.Model.State(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != nil {
		state = s.state(state)
	}
	return state, err
}

// sharedSource is a source that other processes write to: it is no sqlstore.Exclusive.
type sharedSource struct{ Source }

// Usage is at the revision that State returns: the feed waits for it.
func (s *source) Usage(ctx context.Context) (sqlstore.Usage, error) {
	usage, err := s.Model.Usage(ctx)
	s.mu.Lock()
	counted := s.usage
	s.mu.Unlock()
	if counted != nil {
		counted()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != nil {
		usage.Revision = s.state(sqlstore.State{Revision: usage.Revision}).Revision
	}
	return usage, err
}

func (s *source) Changes(ctx context.Context, q sqlstore.ChangesQuery) ([]sqlstore.Change, error) {
	s.reads.Add(1)
	changes, err := s.Model.Changes(ctx, q)
	s.rows.Add(int64(len(changes)))
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.changes != nil {
		changes, err = s.changes(changes)
	}
	return changes, err
}

func (s *source) List(
	ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error,
) (sqlstore.ListResult, error) {
	listed, err := s.Model.List(ctx, q, yield)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listed != nil {
		listed = s.listed(listed)
	}
	return listed, err
}

func (s *source) answer(set func(*source)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set(s)
}

// fixture is a running feed over a model.
type fixture struct {
	t testing.TB
	*Feed
	source *source
}

// never is a poll interval that does not pass while a test runs.
const never = time.Hour

// start starts a feed over an empty store that this process alone writes to.
func start(t *testing.T, opts Options) *fixture {
	return startOver(t, &source{Model: storetest.NewModel()}, opts)
}

// startShared starts a feed over an empty store that other processes write to too.
func startShared(t *testing.T, opts Options) *fixture {
	s := &source{Model: storetest.NewModel()}
	return run(t, &fixture{t: t, Feed: New(sharedSource{s}, opts), source: s})
}

// startOver starts a feed over a store with contents, as after a restart.
func startOver(t *testing.T, s *source, opts Options) *fixture {
	return run(t, &fixture{t: t, Feed: New(s, opts), source: s})
}

func run(t *testing.T, f *fixture) *fixture {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f
}

// awaitUsage waits until the background count of the usage is done. Until then that count,
// and not the test's own call, may call source.state.
func (f *fixture) awaitUsage() {
	f.t.Helper()
	if _, err := f.WaitForUsage(f.t.Context(), pods); err != nil {
		f.t.Fatal(err)
	}
}

// byValue indexes records by their values. The index value of a record whose value begins with
// a question mark is unknown.
func byValue() *Index {
	return &Index{Name: "value", Value: func(e *Entry) (string, bool) {
		return string(e.Value()), !strings.HasPrefix(string(e.Value()), "?")
	}}
}

var pods = sqlstore.Resource{Resource: "pods"}

func pod(namespace, name string) sqlstore.Key {
	return sqlstore.Key{Resource: "pods", Namespace: namespace, Name: name}
}

// put creates or updates a record, and does not publish the change.
func (f *fixture) put(key sqlstore.Key, value string) sqlstore.Change {
	f.t.Helper()
	w := sqlstore.Write{Op: sqlstore.Create, Key: key, Value: []byte(value)}
	if r, _, err := f.source.Get(context.Background(), key); err == nil {
		w.Op, w.Replaces = sqlstore.Update, r.Revision
	}
	return f.commit(w)
}

func (f *fixture) remove(key sqlstore.Key) sqlstore.Change {
	f.t.Helper()
	r, _, err := f.source.Get(context.Background(), key)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.commit(sqlstore.Write{Op: sqlstore.Delete, Key: key, Replaces: r.Revision})
}

func (f *fixture) commit(w sqlstore.Write) sqlstore.Change {
	f.t.Helper()
	outcomes, err := f.source.Commit(context.Background(), []sqlstore.Write{w})
	if err == nil {
		err = outcomes[0].Err
	}
	if err != nil {
		f.t.Fatal(err)
	}
	changes, err := f.source.Model.Changes(context.Background(),
		sqlstore.ChangesQuery{After: outcomes[0].Revision - 1, Limit: 1})
	if err != nil {
		f.t.Fatal(err)
	}
	return changes[0]
}

// write is put, and publishes the change to the feed.
func (f *fixture) write(key sqlstore.Key, value string) sqlstore.Change {
	f.t.Helper()
	c := f.put(key, value)
	f.Publish([]sqlstore.Change{c})
	return c
}

func (f *fixture) subscribe(want Interest, after int64) *Subscription {
	f.t.Helper()
	want.Resource = pods
	s, err := f.Subscribe(f.t.Context(), want, after)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(s.Close)
	return s
}

// next reads n events.
func (f *fixture) next(s *Subscription, n int) []Event {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	var all []Event
	for len(all) < n {
		events, upTo, err := s.Next(ctx)
		if err != nil {
			f.t.Fatalf("after %d of %d events: %v", len(all), n, err)
		}
		if last := events[len(events)-1].Revision; upTo < last {
			f.t.Fatalf("handed out %d, and says up to %d", last, upTo)
		}
		all = append(all, events...)
	}
	if len(all) > n {
		f.t.Fatalf("got %d events, want %d", len(all), n)
	}
	return all
}

func (f *fixture) keys(s Snapshot, namespace string, after *sqlstore.Position) string {
	var keys []string
	for e := range s.All(namespace, after) {
		keys = append(keys, fmt.Sprintf("%s/%s=%s", e.Namespace, e.Name, e.Value()))
	}
	return fmt.Sprint(keys)
}

func (f *fixture) snapshot() Snapshot {
	f.t.Helper()
	s, err := f.Snapshot(f.t.Context(), pods)
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}
