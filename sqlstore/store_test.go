package sqlstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
)

// staged is a Model whose transactions wait for the test.
type staged struct {
	*storetest.Model
	// begun receives the number of writes of each batch. The transaction of the batch
	// then waits for an answer: the error that it ends with, or nil.
	begun   chan int
	answers chan error
}

func newStaged() *staged {
	return &staged{Model: storetest.NewModel(), begun: make(chan int), answers: make(chan error)}
}

func (s *staged) Commit(ctx context.Context, batch []sqlstore.Write) ([]sqlstore.Outcome, error) {
	s.begun <- len(batch)
	if err := <-s.answers; err != nil {
		return nil, err
	}
	return s.Model.Commit(ctx, batch)
}

// running is a Store on a staged driver.
type running struct {
	*testing.T
	driver  *staged
	store   *sqlstore.Store
	stop    context.CancelFunc
	stopped sync.WaitGroup
	metrics *prometheus.Registry
	// results receives a line for each write that Commit has returned from: its name, its
	// revision and its error.
	results chan string
}

func run(t *testing.T, options sqlstore.Options) *running {
	r := &running{T: t, driver: newStaged(), metrics: prometheus.NewRegistry(), results: make(chan string, 100)}
	options.Registerer = r.metrics
	r.store = sqlstore.New(r.driver, options)
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	r.stopped.Go(func() {
		if err := r.store.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); r.stopped.Wait() })
	return r
}

// commit calls Commit in a goroutine of its own.
func (r *running) commit(ctx context.Context, name string, size int) {
	go func() {
		c, err := r.store.Commit(ctx, sqlstore.Write{
			Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: name}, Value: []byte(strings.Repeat("1", size)),
		})
		r.results <- fmt.Sprintf("%s %d %v", name, c.Revision, err)
	}()
}

// create calls commit during another transaction, and waits until the write is in the queue.
func (r *running) create(ctx context.Context, name string, size int) {
	r.Helper()
	before := r.queued()
	r.commit(ctx, name, size)
	for r.queued() == before {
		runtime.Gosched()
	}
}

func (r *running) queued() float64 {
	r.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "byre_store_queue_length" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	r.Fatal("no byre_store_queue_length")
	return 0
}

// occupyWriter starts a transaction with the write "first", so that later writes stay in the
// queue until the test answers it.
func (r *running) occupyWriter() {
	r.Helper()
	r.commit(context.Background(), "first", 1)
	r.expectBatch(1)
}

// expectBatch waits until a transaction begins, and compares its number of writes.
func (r *running) expectBatch(size int) {
	r.Helper()
	if got := <-r.driver.begun; got != size {
		r.Errorf("a batch of %d, want %d", got, size)
	}
}

// expectResults waits for as many results as there are in want, and accepts any order.
func (r *running) expectResults(want ...string) {
	r.Helper()
	wanted := make(map[string]bool)
	for _, line := range want {
		wanted[line] = true
	}
	for range want {
		if got := <-r.results; !wanted[got] {
			r.Errorf("result %q, want one of %q", got, want)
		}
	}
}

func TestStore_BatchesGather(t *testing.T) {
	t.Parallel()
	r := run(t, sqlstore.Options{BatchWrites: 3, BatchBytes: 1000})
	r.occupyWriter()
	for _, name := range []string{"a", "b", "a", "c", "d"} {
		r.create(t.Context(), name, 10)
	}
	r.create(t.Context(), "large", 2000)
	r.create(t.Context(), "small", 10)
	r.driver.answers <- nil
	r.expectBatch(3) // a b c: the second write of a may not share a transaction with the first
	r.driver.answers <- nil
	r.expectBatch(2) // a d: the large one does not fit any more
	r.driver.answers <- nil
	r.expectBatch(1) // the large one alone
	r.driver.answers <- nil
	r.expectBatch(1)
	r.driver.answers <- nil
	r.expectResults("first 1 <nil>", "a 2 <nil>", "b 3 <nil>", "c 4 <nil>", "a 0 object exists", "d 5 <nil>",
		"large 6 <nil>", "small 7 <nil>")
}

// TestStore_RequirementsSplitBatches: a write of an object, and a write that requires it, share
// no transaction; each sees what was committed before.
func TestStore_RequirementsSplitBatches(t *testing.T) {
	t.Parallel()
	r := run(t, sqlstore.Options{})
	definition := sqlstore.Key{Resource: "definitions", Name: "d"}
	queue := func(name string, w sqlstore.Write) {
		before := r.queued()
		go func() {
			c, err := r.store.Commit(context.WithoutCancel(t.Context()), w)
			r.results <- fmt.Sprintf("%s %d %v", name, c.Revision, err)
		}()
		for r.queued() == before {
			runtime.Gosched()
		}
	}
	define := func(op sqlstore.Op, replaces, generation int64) sqlstore.Write {
		return sqlstore.Write{Op: op, Key: definition, Replaces: replaces, UID: "u", Generation: generation,
			Value: []byte("{}")}
	}
	instance := func(name string, generation int64) sqlstore.Write {
		return sqlstore.Write{
			Op: sqlstore.Create, Key: sqlstore.Key{Resource: "instances", Name: name}, Value: []byte("{}"),
			Requires: &sqlstore.Requirement{Key: definition, UID: "u", Generation: generation},
		}
	}
	r.occupyWriter()
	queue("define", define(sqlstore.Create, 0, 1))
	queue("a", instance("a", 1))
	queue("b", instance("b", 1))
	queue("change", define(sqlstore.Update, 2, 2))
	queue("c", instance("c", 1))
	queue("d", instance("d", 2))
	r.driver.answers <- nil
	r.expectBatch(1) // the definition
	r.driver.answers <- nil
	r.expectBatch(4) // the instances
	r.driver.answers <- nil
	r.expectBatch(1) // the change of the definition
	r.driver.answers <- nil
	r.expectResults("first 1 <nil>", "define 2 <nil>", "a 3 <nil>", "b 4 <nil>", "c 5 <nil>", "change 6 <nil>",
		"d 0 "+sqlstore.ErrRequired.Error())
}

// counted is a Model that counts transactions, each of which takes some time.
type counted struct {
	*storetest.Model
	transactions atomic.Int64
	takes        time.Duration
}

func (c *counted) Commit(ctx context.Context, batch []sqlstore.Write) ([]sqlstore.Outcome, error) {
	c.transactions.Add(1)
	time.Sleep(c.takes)
	return c.Model.Commit(ctx, batch)
}

// TestStore_BusyWritersShareTransactions: many writers on one processor share transactions
// even if a transaction takes no time.
func TestStore_BusyWritersShareTransactions(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	driver := &counted{Model: storetest.NewModel()}
	store := sqlstore.New(driver, sqlstore.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var running, writers sync.WaitGroup
	running.Go(func() {
		if err := store.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	const clients, each = 32, 20
	for i := range clients {
		writers.Go(func() {
			for n := range each {
				key := sqlstore.Key{Resource: "pods", Name: fmt.Sprintf("%d-%d", i, n)}
				if _, err := store.Commit(ctx, sqlstore.Write{Op: sqlstore.Create, Key: key, Value: []byte("{}")}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	cancel()
	running.Wait()
	if got := driver.transactions.Load(); got > clients*each/4 {
		t.Errorf("%d transactions for %d writes of %d writers", got, clients*each, clients)
	}
}

// TestStore_ChangesOfOneObjectDontWaitForConflicts: of many clients that change the same object, each of which reads it
// again after a conflict, one succeeds with nearly each transaction. If each conflict took a transaction, changes that
// come a little faster than they are made would never end.
func TestStore_ChangesOfOneObjectDontWaitForConflicts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := &counted{Model: storetest.NewModel(), takes: 10 * time.Millisecond}
		store := sqlstore.New(driver, sqlstore.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		var running, clients sync.WaitGroup
		running.Go(func() {
			if err := store.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		w := sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "configmaps", Name: "hot"}, UID: "u",
			Value: []byte("{}")}
		if _, err := store.Commit(ctx, w); err != nil {
			t.Fatal(err)
		}
		const changes = 50
		for range changes {
			clients.Go(func() {
				w := w
				w.Op = sqlstore.Update
				for {
					current, _, err := store.Get(ctx, w.Key)
					if err != nil {
						t.Error(err)
						return
					}
					w.Replaces = current.Revision
					_, err = store.Commit(ctx, w)
					var conflict *sqlstore.ConflictError
					switch {
					case err == nil:
						return
					case !errors.As(err, &conflict) || conflict.Current <= w.Replaces:
						t.Errorf("replacing revision %d: %v", w.Replaces, err)
						return
					}
				}
			})
		}
		clients.Wait()
		cancel()
		running.Wait()
		if got := driver.transactions.Load(); got > 2*changes {
			t.Errorf("%d transactions for %d changes", got, changes)
		}
	})
}

func TestStore_CancelledWriteLeavesTheQueue(t *testing.T) {
	t.Parallel()
	r := run(t, sqlstore.Options{})
	r.occupyWriter()
	ctx, cancel := context.WithCancel(t.Context())
	r.create(ctx, "waiting", 1)
	r.create(t.Context(), "other", 1)
	cancel()
	r.expectResults("waiting 0 context canceled")
	r.driver.answers <- nil
	r.expectBatch(1) // without the one that left the queue
	r.driver.answers <- nil
	r.expectResults("first 1 <nil>", "other 2 <nil>")

	// After the transaction has begun, its outcome is the outcome of the write.
	ctx, cancel = context.WithCancel(t.Context())
	r.commit(ctx, "begun", 1)
	r.expectBatch(1)
	cancel()
	r.driver.answers <- nil
	r.expectResults("begun 3 <nil>")
}

// TestStore_ADeadlineEndsTheWaitForATransaction whose end nobody knows: the write is committed, but not yet copied for
// example. The next ones wait for its end.
func TestStore_ADeadlineEndsTheWaitForATransaction(t *testing.T) {
	t.Parallel()
	r := run(t, sqlstore.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	r.commit(ctx, "begun", 1)
	r.expectBatch(1)
	cancel()
	r.expectResults("begun 0 " + sqlstore.ErrUnknown.Error() + ": it takes longer than the request may: context canceled")
	r.create(t.Context(), "next", 1)
	r.driver.answers <- nil
	r.expectBatch(1)
	r.driver.answers <- nil
	r.expectResults("next 2 <nil>")
}

func TestStore_FailureIsOfItsOperation(t *testing.T) {
	t.Parallel()
	published := make(chan int64, 10)
	r := run(t, sqlstore.Options{RetryInterval: time.Hour, Publish: func(changes []sqlstore.Change) {
		for _, c := range changes {
			published <- c.Revision
		}
	}})
	// Of a batch that meets a damaged file, the halves would fail in the same way.
	for _, sentinel := range []error{sqlstore.ErrUnavailable, sqlstore.ErrUnknown, sqlstore.ErrDamaged} {
		r.occupyWriter()
		r.create(t.Context(), "a", 1)
		r.create(t.Context(), "b", 1)
		err := fmt.Errorf("%w: why", sentinel)
		r.driver.answers <- err
		r.expectBatch(2)
		r.driver.answers <- err
		r.expectResults("first 0 "+err.Error(), "a 0 "+err.Error(), "b 0 "+err.Error())
	}
	// An error that does not concern the database fails its own write only.
	r.occupyWriter()
	r.create(t.Context(), "a", 1)
	r.create(t.Context(), "bad", 1)
	r.create(t.Context(), "c", 1)
	r.driver.answers <- nil
	r.expectBatch(3)
	poison := errors.New("poison")
	for i, answer := range []error{poison, nil, poison, poison, nil} {
		r.driver.answers <- answer
		if half := []int{1, 2, 1, 1}; i < len(half) {
			r.expectBatch(half[i])
		}
	}
	r.expectResults("first 1 <nil>", "a 2 <nil>", "bad 0 poison", "c 3 <nil>")
	for want := range int64(3) {
		if got := <-published; got != want+1 {
			t.Errorf("published %d, want %d", got, want+1)
		}
	}
	if n := testutil.CollectAndCount(r.metrics, "byre_store_commits_total"); n != 4 {
		t.Errorf("%d kinds of commits are counted, want ok, unavailable, unknown and error", n)
	}
}

// uncopied is a Model whose commits are in no copy.
type uncopied struct{ *storetest.Model }

func (u uncopied) Commit(ctx context.Context, batch []sqlstore.Write) ([]sqlstore.Outcome, error) {
	outcomes, err := u.Model.Commit(ctx, batch)
	return outcomes, errors.Join(err, sqlstore.ErrUnknown)
}

// TestStore_PublishesWhatReadsSee: a commit that is not acknowledged, because it is in no copy, is published if reads
// see it. Whoever follows the store would otherwise wait for its revision, which State returns.
func TestStore_PublishesWhatReadsSee(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var published []int64
		store := sqlstore.New(uncopied{storetest.NewModel()}, sqlstore.Options{Publish: func(changes []sqlstore.Change) {
			for _, c := range changes {
				published = append(published, c.Revision)
			}
		}})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := store.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		defer running.Wait()
		defer cancel()
		w := sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: "a"}, Value: []byte("{}")}
		for range 2 { // that the object exists is a result that may be lost too
			if _, err := store.Commit(ctx, w); !errors.Is(err, sqlstore.ErrUnknown) || errors.Is(err, sqlstore.ErrExists) {
				t.Error(err)
			}
		}
		if state, err := store.State(ctx); err != nil || !slices.Equal(published, []int64{state.Revision}) {
			t.Errorf("published %v, State returns %+v, %v", published, state, err)
		}
	})
}

// logLines is a slog handler's output, one string a line.
type logLines struct{ lines chan string }

func (l logLines) Write(line []byte) (int, error) {
	l.lines <- string(line)
	return len(line), nil
}

// An outage is logged once for each cause. Writable tells clients of it without the
// database's words. The store tries the database until it takes writes again.
func TestStore_OutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	log := logLines{make(chan string, 100)}
	r := run(t, sqlstore.Options{RetryInterval: time.Millisecond, Logger: slog.New(slog.NewTextHandler(log, nil))})
	logged := func(want ...string) {
		t.Helper()
		line := ""
		select {
		case line = <-log.lines:
		default:
		}
		for _, text := range want {
			if !strings.Contains(line, text) {
				t.Errorf("logged %q, want %q", line, text)
			}
		}
		if len(want) == 0 && line != "" {
			t.Errorf("logged %q again", line)
		}
	}
	fails := func(cause error) {
		t.Helper()
		r.driver.answers <- cause
		r.expectBatch(0) // the next try: the outcome of the last one is known
		if err := r.store.Writable(); err == nil || err.Error() != sqlstore.Public(cause) {
			t.Errorf("writable: %v", err)
		}
	}
	full := fmt.Errorf("%w: /secret/byre.db: database or disk is full", sqlstore.ErrDiskFull)
	r.occupyWriter()
	fails(full)
	logged("level=ERROR", `cause="the disk is full"`, "/secret/byre.db")
	fails(full)
	logged()
	fails(fmt.Errorf("%w: /secret/byre.db: disk I/O error", sqlstore.ErrIO))
	logged("level=ERROR", `cause="input or output failed"`)
	fails(full)
	logged()
	r.driver.answers <- nil
	r.occupyWriter()
	if err := r.store.Writable(); err != nil {
		t.Errorf("writable: %v", err)
	}
	logged("level=INFO", "takes writes again")
	// What is not known is no cause: the next try tells it.
	unknown := fmt.Errorf("%w: the connection was closed", sqlstore.ErrUnknown)
	fails(unknown)
	logged("level=WARN", "the connection was closed")
	fails(fmt.Errorf("%w: the connection was refused", sqlstore.ErrUnavailable))
	logged("level=ERROR", "the connection was refused")
	r.driver.answers <- nil
	r.occupyWriter()
	logged("level=INFO", "takes writes again")
	// An error of one write is no outage.
	r.driver.answers <- errors.New("poison")
	r.occupyWriter()
	r.driver.answers <- nil
	r.expectResults("first 0 "+full.Error(), "first 0 "+unknown.Error(), "first 0 poison", "first 1 <nil>")
	if err := r.store.Writable(); err != nil {
		t.Errorf("writable: %v", err)
	}
	logged()
}

func TestStore_StopEndsWrites(t *testing.T) {
	t.Parallel()
	r := run(t, sqlstore.Options{})
	r.occupyWriter()
	r.create(t.Context(), "waiting", 1)
	r.stop()
	r.driver.answers <- nil
	r.expectResults("first 1 <nil>", "waiting 0 store is closed")
	r.stopped.Wait()
}

// TestStore_MeasuresTheHistoryFromTheStart: the metrics of a store that was compacted, or
// restored, before its start are right before the first compaction.
func TestStore_MeasuresTheHistoryFromTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel()
		for i := range 3 {
			write := sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: fmt.Sprint(i)},
				Value: []byte("1")}
			if _, err := model.Commit(t.Context(), []sqlstore.Write{write}); err != nil {
				t.Fatal(err)
			}
		}
		storetest.Compact(t, model, 2)
		metrics := prometheus.NewRegistry()
		store := sqlstore.New(model, sqlstore.Options{Registerer: metrics, CompactInterval: time.Hour})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = store.Run(ctx) })
		synctest.Wait()
		want := `
# HELP byre_store_compacted_revision Last revision whose history is gone.
# TYPE byre_store_compacted_revision gauge
byre_store_compacted_revision 2
# HELP byre_store_revision Last revision that this process has seen in the store.
# TYPE byre_store_revision gauge
byre_store_revision 3
`
		if err := testutil.GatherAndCompare(metrics, strings.NewReader(want), "byre_store_compacted_revision",
			"byre_store_revision"); err != nil {
			t.Error(err)
		}
		cancel()
		running.Wait()
	})
}

// BenchmarkGather has writers do the work of a request (about 100 microseconds of processor
// time) and then write, with and without gathering.
func BenchmarkGather(b *testing.B) {
	for _, writers := range []int{1, 8, 64} {
		for _, gathers := range []bool{true, false} {
			b.Run(fmt.Sprintf("writers=%d/gather=%v", writers, gathers), func(b *testing.B) {
				benchmarkGather(b, writers, gathers)
			})
		}
	}
}

func benchmarkGather(b *testing.B, writers int, gathers bool) {
	driver := dbtest.SQLite(b)
	defer driver.Close()
	store := sqlstore.New(driver, sqlstore.Options{})
	run := store.Run
	if !gathers {
		run = store.RunWithoutGathering
	}
	ctx, stop := context.WithCancel(b.Context())
	var running, writing sync.WaitGroup
	running.Go(func() { _ = run(ctx) })
	var next atomic.Int64
	began := processorTime(b)
	b.ResetTimer()
	for range writers {
		writing.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				w := sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: fmt.Sprint(i)},
					Value: request(b)}
				if _, err := store.Commit(ctx, w); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	writing.Wait()
	b.ReportMetric(float64((processorTime(b)-began).Microseconds())/float64(b.N), "cpu-µs/write")
	stop()
	running.Wait()
}

// request encodes and decodes a value of about 2 kB, as a request does.
func request(b *testing.B) []byte {
	value := map[string]any{}
	for i := range 60 {
		value[fmt.Sprint("field", i)] = "a value of some length"
	}
	encoded, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(encoded, &value)
	}
	if err != nil {
		b.Error(err)
	}
	return encoded
}

// processorTime is the processor time of this process, of user and system.
func processorTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
