package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// fault is a fault that the test injects while two replicas write.
type fault struct {
	site   pgtest.SiteConfig
	inject func(ctx context.Context, s *pgtest.Site) error
	// losesCommits says that acknowledged writes may be lost.
	losesCommits bool
}

// short is the shortest duration of an outage.
const short = 300 * time.Millisecond

var faults = map[string]fault{
	"sessions are terminated": {inject: func(ctx context.Context, s *pgtest.Site) error { return s.Terminate(ctx) }},
	"the server crashes":      {inject: func(ctx context.Context, s *pgtest.Site) error { return s.Restart(ctx) }},
	"the network is silent": {inject: func(ctx context.Context, s *pgtest.Site) error {
		return s.Blackhole(ctx, short)
	}},
	"COMMIT is lost, the connection too": {inject: func(ctx context.Context, s *pgtest.Site) error {
		return s.AtCommit(ctx, pgtest.Sent, pgtest.Drop, nil)
	}},
	"COMMIT is swallowed": {inject: func(ctx context.Context, s *pgtest.Site) error {
		return s.AtCommit(ctx, pgtest.Sent, pgtest.Swallow, nil)
	}},
	"COMMIT's answer is lost, the connection too": {inject: func(ctx context.Context, s *pgtest.Site) error {
		return s.AtCommit(ctx, pgtest.Answered, pgtest.Drop, nil)
	}},
	"COMMIT's answer is swallowed": {inject: func(ctx context.Context, s *pgtest.Site) error {
		return s.AtCommit(ctx, pgtest.Answered, pgtest.Swallow, nil)
	}},
	"the disk is full": {
		site:   pgtest.SiteConfig{Disk: 80},
		inject: func(ctx context.Context, s *pgtest.Site) error { return s.FillDisk(ctx, short) },
	},
	"the disk of the write-ahead log is full": {
		site:   pgtest.SiteConfig{Disk: 24, DiskForWAL: true},
		inject: func(ctx context.Context, s *pgtest.Site) error { return s.FillDisk(ctx, 5*short) },
	},
	"the file system becomes read-only": {
		site:   pgtest.SiteConfig{Disk: 80},
		inject: func(ctx context.Context, s *pgtest.Site) error { return s.FailDisk(ctx, short) },
	},
	"failover to a synchronous standby": {
		site:   pgtest.SiteConfig{Standby: true, Synchronous: true},
		inject: func(ctx context.Context, s *pgtest.Site) error { return s.Failover(ctx, 0) },
	},
	"failover to a standby that was behind": {
		site:         pgtest.SiteConfig{Standby: true},
		inject:       func(ctx context.Context, s *pgtest.Site) error { return s.Failover(ctx, short) },
		losesCommits: true,
	},
}

// TestFaults_KeepWhatWasAcknowledged: two replicas write and compact while the database has
// a fault. Afterwards every acknowledged write exists, no refused write does, each change
// happened once, and both replicas write again by themselves.
func TestFaults_KeepWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f.site.Replicas = 2
			site := pgtest.NewSite(t, f.site)
			if _, err := migrations.Up(t.Context(), site.DSN(0)); err != nil {
				t.Fatal(err)
			}
			w := startWriters(t, site)
			w.awaitWrites(t, 20)
			if err := f.inject(t.Context(), site); err != nil {
				t.Fatal(err)
			}
			ended := time.Now()
			w.awaitWrites(t, 20)
			took := time.Since(ended)
			w.stop(t)
			t.Logf("both write again after %v; refused %v", took.Round(time.Millisecond), w.refusals())
			if f.losesCommits {
				w.checkEpoch(t)
			} else {
				w.check(t)
			}
		})
	}
}

// writers are two replicas that create objects until stop is called.
type writers struct {
	drivers []*postgres.Driver
	cancel  context.CancelFunc
	running sync.WaitGroup
	// written counts the acknowledged writes of each replica.
	written [2]atomic.Int64

	mu       sync.Mutex
	outcomes map[string]outcome
}

type outcome struct {
	revision int64
	err      error
}

func startWriters(t *testing.T, site *pgtest.Site) *writers {
	return startWritersOn(t, site.DSN(0), site.DSN(1))
}

func startWritersOn(t *testing.T, dsns ...string) *writers {
	ctx, cancel := context.WithCancel(t.Context())
	w := &writers{cancel: cancel, outcomes: map[string]outcome{}}
	for _, dsn := range dsns {
		w.drivers = append(w.drivers, openMore(t, dsn, postgres.Options{
			LockTimeout: time.Second, CommitTimeout: 2 * time.Second, ReadTimeout: time.Second,
		}))
	}
	for i := range w.drivers {
		w.running.Go(func() { w.write(ctx, t, i) })
	}
	w.running.Go(func() { w.compact(ctx, t) })
	return w
}

func (w *writers) write(ctx context.Context, t *testing.T, replica int) {
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprint(replica, "-", n)
		write := create(name)
		write[0].Value = []byte(`"` + strings.Repeat("x", 2000) + `"`)
		o, err := w.drivers[replica].Commit(context.WithoutCancel(ctx), write)
		result := outcome{err: err}
		if err == nil {
			result.revision, result.err = o[0].Revision, o[0].Err
		}
		w.mu.Lock()
		w.outcomes[name] = result
		w.mu.Unlock()
		switch {
		case result.err == nil:
			w.written[replica].Add(1)
		case errors.Is(result.err, sqlstore.ErrUnavailable), errors.Is(result.err, sqlstore.ErrUnknown):
		default:
			t.Errorf("write of %s: %v", name, result.err)
			return
		}
	}
}

// compact compacts all but the last hundred changes, again and again.
func (w *writers) compact(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		state, err := w.drivers[0].State(ctx)
		if err == nil {
			_, _, err = w.drivers[0].DeleteHistory(ctx,
				sqlstore.Deletion{Of: create("x")[0].Key.Of(), UpTo: state.Revision - 100, Limit: 50})
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, sqlstore.ErrUnavailable) {
			t.Errorf("compaction: %v", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond): // the pace of compaction
		}
	}
}

// awaitWrites waits until each replica has created that many more objects.
func (w *writers) awaitWrites(t *testing.T, objects int64) {
	t.Helper()
	want := [2]int64{w.written[0].Load() + objects, w.written[1].Load() + objects}
	storetest.EventuallyDone(t, "writes of both replicas", func(context.Context) (bool, error) {
		return w.written[0].Load() >= want[0] && w.written[1].Load() >= want[1], nil
	})
}

func (w *writers) stop(t *testing.T) {
	t.Helper()
	w.cancel()
	w.running.Wait()
}

// refusals counts the writes that were not acknowledged, by their errors.
func (w *writers) refusals() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := map[string]int{}
	for _, o := range w.outcomes {
		if o.err != nil {
			counts[sqlstore.Public(o.err)]++
		}
	}
	return counts
}

// check compares the outcomes of the writes with the objects that exist.
func (w *writers) check(t *testing.T) {
	t.Helper()
	existing := int64(0)
	for name, o := range w.outcomes {
		r, err := w.get(t, 0, name)
		if err == nil {
			existing++
		}
		switch {
		case o.err == nil && r.Revision != o.revision:
			t.Errorf("%s was acknowledged at %d and is at %d, %v", name, o.revision, r.Revision, err)
		case errors.Is(o.err, sqlstore.ErrUnavailable) && err == nil:
			t.Errorf("%s was refused and is there: %v", name, o.err)
		}
	}
	for i := range w.drivers {
		if state := w.state(t, i); state.Revision != existing {
			t.Errorf("replica %d: %d objects at revision %d", i, existing, state.Revision)
		}
	}
}

// get reads an object. It repeats the read, because on a busy machine reads may exceed the
// drivers' short timeouts.
func (w *writers) get(t *testing.T, replica int, name string) (r sqlstore.Record, err error) {
	t.Helper()
	untilAvailable(t, func(ctx context.Context) error {
		if r, _, err = w.drivers[replica].Get(ctx, create(name)[0].Key); errors.Is(err, sqlstore.ErrNotFound) {
			return nil
		}
		return err
	})
	return r, err
}

// state reads the state, as get reads an object.
func (w *writers) state(t *testing.T, replica int) (state sqlstore.State) {
	t.Helper()
	untilAvailable(t, func(ctx context.Context) (err error) {
		state, err = w.drivers[replica].State(ctx)
		return err
	})
	return state
}

// checkEpoch is check for a database that has lost commits: what both replicas have written
// in the new epoch exists.
func (w *writers) checkEpoch(t *testing.T) {
	t.Helper()
	var states []sqlstore.State
	for i := range w.drivers {
		state := w.state(t, i)
		if state.Revision < 1_000_000 {
			t.Errorf("replica %d is at %+v", i, state)
		}
		states = append(states, state)
	}
	if states[0].Epoch != states[1].Epoch || states[0].Revision != states[1].Revision {
		t.Errorf("the replicas differ: %+v", states)
	}
	for name, o := range w.outcomes {
		r, err := w.get(t, 1, name)
		if o.revision > 1_000_000 && r.Revision != o.revision {
			t.Errorf("%s was acknowledged at %d in the new epoch and is at %d, %v", name, o.revision, r.Revision, err)
		}
		if errors.Is(o.err, sqlstore.ErrUnavailable) && err == nil {
			t.Errorf("%s was refused and is there: %v", name, o.err)
		}
	}
}

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
		if outcome == nil && err != nil || errors.Is(outcome, sqlstore.ErrUnavailable) &&
			!errors.Is(err, sqlstore.ErrNotFound) {
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

// recovery is the time within which reads and writes must work after a silent host answers
// again, or another host does. It takes ten seconds at most where the processors are free;
// TCP alone would take 15 minutes.
const recovery = time.Minute

// openThrough opens a driver on an empty database through proxies, which are its hosts.
func openThrough(t *testing.T, proxies int, options postgres.Options) (*postgres.Driver, []*pgtest.Proxy) {
	t.Helper()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	all := make([]*pgtest.Proxy, proxies)
	for i := range all {
		all[i] = pgtest.NewProxy(t, dsn)
	}
	driver := openMore(t, all[0].DSN(all[1:]...), options)
	t.Cleanup(func() { // before Close of the driver, which waits for the server
		for _, p := range all {
			p.Cut()
		}
	})
	return driver, all
}

// warm has the pool for reads open several connections.
func warm(t *testing.T, driver *postgres.Driver) {
	t.Helper()
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			_, err := driver.State(t.Context())
			// on a busy machine, to connect may exceed the timeout
			for errors.Is(err, sqlstore.ErrUnavailable) && t.Context().Err() == nil {
				_, err = driver.State(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	readers.Wait()
}

// untilAvailable repeats a read or a write until it succeeds. Each failure must be
// ErrUnavailable, for which a busy machine is enough where timeouts are short.
func untilAvailable(t *testing.T, work func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), recovery)
	defer cancel()
	for {
		err := work(ctx)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("not available within %v: %v", recovery, err)
		}
		if !errors.Is(err, sqlstore.ErrUnavailable) {
			t.Fatal(err)
		}
	}
}

// createAvailable creates an object as soon as the database is available.
func createAvailable(t *testing.T, driver *postgres.Driver, name string) {
	t.Helper()
	isUnknown := false
	untilAvailable(t, func(ctx context.Context) error {
		o, err := driver.Commit(ctx, create(name))
		switch {
		case errors.Is(err, sqlstore.ErrUnknown): // sent on a connection that the server was closing
			isUnknown = true
			return sqlstore.ErrUnavailable
		case err != nil:
			return err
		case isUnknown && errors.Is(o[0].Err, sqlstore.ErrExists):
			return nil
		}
		return o[0].Err
	})
}

// outcomeIsUnknown creates an object whose COMMIT gets no answer, and expects that the driver
// stops waiting for it.
func outcomeIsUnknown(t *testing.T, driver *postgres.Driver, name string) {
	t.Helper()
	committed := make(chan error, 1)
	go func() {
		_, err := driver.Commit(t.Context(), create(name))
		for errors.Is(err, sqlstore.ErrUnavailable) && t.Context().Err() == nil { // not sent
			_, err = driver.Commit(t.Context(), create(name))
		}
		committed <- err
	}()
	select {
	case err := <-committed:
		if !errors.Is(err, sqlstore.ErrUnknown) {
			t.Errorf("commit without an answer: %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("the commit waits for an answer that does not come")
	}
}
