package watch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"byre/sqlstore"
)

// tail gets the store's changes, those of this process by Publish and those of others from the
// store, and applies them in the order of their revisions.
type tail struct {
	source      Source
	opts        Options
	metrics     metrics
	lifecycle   *lifecycle
	progress    *progress
	readIndex   *readIndex
	usages      *usages
	changePages *changePages
	state       *state
	// behind receives when the store may have changes that the feed lacks; run then reads
	// them.
	behind chan struct{}
	// follower gets what Publish gets; nil if nobody does.
	follower atomic.Pointer[sqlstore.Publish]
	// pollRequested is true when a hint may have been lost: run then reads the store's state.
	pollRequested atomic.Bool

	// mu guards what follows. Only its holder applies events and takes over states of the store.
	mu sync.Mutex
	// begun is true once the feed has taken over the store's state.
	begun bool
	// pending has published events that wait for earlier ones, ascending. Invariant: once begun
	// is true, the revision of the first is greater than that after progress.revision. applyNext
	// keeps it.
	pending []Event
	// target is the highest revision of which a hint, a publication, a read or a client
	// has told. While it is greater than progress.revision, run reads changes from the store.
	target int64
	// told is the highest of these revisions since the last nextGap: the changes that run reads for
	// that gap may lack it.
	told int64
}

// Publish applies changes that this process committed, in revision order. If changes before
// them are missing, because another process made those, they wait until the tail has read
// those. Publish does not block. It is the function for sqlstore.Options.Publish.
func (t *tail) Publish(changes []sqlstore.Change) {
	if len(changes) == 0 {
		return
	}
	if f := t.follower.Load(); f != nil {
		(*f)(changes)
	}
	events := t.state.prepare(changes)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending = append(t.pending, events...)
	if t.begun {
		t.pending = t.applyNext(t.pending)
	}
	t.pending = t.pending[:min(len(t.pending), maxPending)]
	t.raiseTarget(events[len(events)-1].Revision)
}

// FollowPublished has f, and no other function, called with what Publish gets, before it is applied. f does not block.
// Where f is nil no function is called.
func (t *tail) FollowPublished(f sqlstore.Publish) {
	if f == nil {
		t.follower.Store(nil)
		return
	}
	t.follower.Store(&f)
}

// raiseTarget has run read the changes up to a revision. The caller holds mu.
func (t *tail) raiseTarget(revision int64) {
	t.told = max(t.told, revision)
	if t.target = max(t.target, revision); t.target > t.progress.Revision() {
		signal(t.behind)
	}
}

// hint records that a revision exists, and has run read the changes up to it. With 0 it has run read
// the store's state.
func (t *tail) hint(revision int64) {
	if revision == 0 {
		t.pollRequested.Store(true)
		signal(t.behind)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.raiseTarget(revision)
}

// applyNext applies those events of an ascending list that come next, and returns those after a
// missing revision. It leaves out those that were applied before. The caller holds mu.
//
// Invariant: within a generation each event applied has the revision after the last one.
// Otherwise events would be missed or applied twice.
func (t *tail) applyNext(events []Event) (later []Event) {
	revision := t.progress.Revision()
	for len(events) > 0 && events[0].Revision <= revision {
		events = events[1:]
	}
	n := 0
	for n < len(events) && events[n].Revision == revision+int64(n)+1 {
		n++
	}
	if n > 0 {
		t.metrics.applied.Add(float64(n))
		t.usages.apply(events[:n])
		t.state.apply(events[:n])
	}
	if n == len(events) {
		return nil
	}
	return events[n:]
}

// begin takes over the store's state for the first time. It returns false when ctx ends
// before the store answers.
func (t *tail) begin(ctx context.Context) bool {
	for {
		stored, err := t.readIndex.ask(ctx)
		if err == nil {
			t.mu.Lock()
			t.restart(stored)
			t.begun = true
			t.pending = t.applyNext(t.pending)
			t.mu.Unlock()
			close(t.lifecycle.started)
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		t.opts.Logger.Warn("watch: can't read the store's state; trying again", "error", err)
		if !sleep(ctx, t.opts.Interval) {
			return false
		}
	}
}

// restart makes a state of the store the feed's state, whatever was applied before, and has the
// database count again. The caller holds mu.
func (t *tail) restart(stored sqlstore.State) {
	counted := t.usages.restart(stored.Revision)
	t.state.restart(stored)
	t.lifecycle.spawn(func(ctx context.Context) { t.usages.count(ctx, counted) })
}

// run reads from the store the changes that the feed does not get by Publish: those of other
// processes. It reads when behind receives. It also polls once an Interval, because hints
// may be lost. It does not poll a store that only this process writes to; it reads from that
// store again only after a failure.
func (t *tail) run(ctx context.Context) {
	timer := time.NewTimer(t.opts.Interval)
	defer timer.Stop()
	isFailing := false
	for {
		poll := false
		select {
		case <-ctx.Done():
			return
		case <-t.behind:
		case <-timer.C:
			poll = true
		}
		err := t.catchUp(ctx, t.pollRequested.Swap(false) || poll)
		if ctx.Err() != nil {
			return
		}
		if (err != nil) != isFailing {
			if isFailing = err != nil; isFailing {
				t.opts.Logger.Warn("watch: can't follow the store; trying again", "error", err)
			} else {
				t.opts.Logger.Info("watch: following the store again")
			}
		}
		if !t.progress.isSoleWriter || isFailing {
			timer.Reset(t.opts.Interval)
		}
	}
}

// errHole means that a revision is missing in the store, whose revisions must be dense.
var errHole = errors.New("revisions have a hole")

// catchUp applies the changes up to target that the feed lacks. For a poll it first reads
// the store's state, which may raise target.
func (t *tail) catchUp(ctx context.Context, poll bool) error {
	if poll && !t.progress.isSoleWriter {
		if err := t.poll(ctx); err != nil {
			return err
		}
	}
	for {
		g := t.nextGap()
		if g.limit == 0 {
			return nil
		}
		changes, err := t.source.Changes(ctx, sqlstore.ChangesQuery{After: g.after, Limit: g.limit, Size: pageBytes})
		switch {
		case errors.Is(err, sqlstore.ErrCompacted):
			t.opts.Logger.Warn("watch: fell behind compaction; reading everything again", "revision", g.after)
			return t.reset(ctx, resetCompacted)
		case err == nil:
			err = t.fill(g, changes)
		case !errors.Is(err, sqlstore.ErrDamaged):
			return err
		}
		if err != nil {
			t.opts.Logger.Error("watch: history is broken; reading everything again", "error", err)
			return t.reset(ctx, resetHole)
		}
	}
}

// poll reads the store's state, and raises target to its revision. If the state is of another
// epoch, because the store has lost commits or was restored, it resets the feed.
func (t *tail) poll(ctx context.Context) error {
	before := t.progress.Revision()
	state, err := t.readIndex.ask(ctx)
	if err != nil {
		return err
	}
	t.progress.compacted.Store(state.Compacted)
	if state.Revision > before {
		t.hint(state.Revision)
	}
	if state.Epoch != t.progress.generation.Load().epoch || state.Revision < before {
		t.opts.Logger.Warn("watch: the store's history has started again; reading everything, and ending all watches",
			"applied", before, "revision", state.Revision, "epoch", state.Epoch)
		return t.reset(ctx, resetRestored)
	}
	return nil
}

// gap is a range of changes that the feed lacks: up to limit changes after a revision. pending is the
// revision of the first pending event when the gap was found; 0 if there was none. A limit of 0 means
// that the feed lacks no change.
type gap struct {
	after, pending int64
	limit          int
}

// nextGap returns the gap between the last event applied and the first pending one, or else
// target.
func (t *tail) nextGap() (g gap) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.told = 0
	if g.after = t.progress.Revision(); t.target > g.after {
		g.limit = pageChanges
		if len(t.pending) > 0 {
			g.pending = t.pending[0].Revision
			g.limit = int(min(pageChanges, g.pending-1-g.after))
		}
	}
	return g
}

// fill applies the changes that were read for a gap, and then the pending events that are next.
// It fails with errHole if a revision is missing.
func (t *tail) fill(g gap, changes []sqlstore.Change) error {
	for i, c := range changes {
		if c.Revision != g.after+int64(i)+1 {
			return fmt.Errorf("%w: %d comes after %d", errHole, c.Revision, g.after+int64(i))
		}
	}
	events := t.state.prepare(changes)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.applyNext(events)
	t.pending = t.applyNext(t.pending)
	switch {
	case len(changes) > 0 || g.pending > 0 && t.progress.Revision() != g.after:
	case g.pending > 0:
		t.target = g.after
		return fmt.Errorf("%w: %d was committed, %d is not there", errHole, g.pending, g.after+1)
	default:
		// The store did not have target when the gap was found: a hint was wrong, or a client asked
		// for a revision that does not exist yet.
		t.target = t.told
	}
	return nil
}

// reset drops all state in memory and takes over the store's current state. reason is one of the
// reasons in metrics.go.
func (t *tail) reset(ctx context.Context, reason string) error {
	stored, err := t.readIndex.ask(ctx)
	if err != nil {
		return err
	}
	t.metrics.resets.WithLabelValues(reason).Inc()
	t.changePages.forget()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending = nil
	if stored.Epoch != t.progress.generation.Load().epoch {
		t.target = 0 // it is a revision of the earlier epoch
	}
	t.restart(stored)
	// Changes that were published after the state was read are later than the state, and were
	// dropped from pending. target stays at their revision, so that run reads them from the store.
	t.raiseTarget(stored.Revision)
	return nil
}

// listen calls Listen again and again until ctx ends, if other processes write to the store. The tail polls meanwhile,
// so that changes are only delayed if Listen fails.
func (t *tail) listen(ctx context.Context) {
	shared, ok := t.source.(sqlstore.Shared)
	for ok {
		err := shared.Listen(ctx, t.hint)
		if ctx.Err() != nil {
			return
		}
		t.opts.Logger.Debug("watch: listening ended; trying again", "error", err)
		if !sleep(ctx, t.opts.Interval) {
			return
		}
	}
}

// The reasons for a reset, in metrics.
const (
	resetCompacted = "compacted"
	resetHole      = "hole"
	resetRestored  = "restored"
)

type metrics struct {
	applied prometheus.Counter
	resets  *prometheus.CounterVec
}

// newMetrics makes the metrics of a feed, and registers them, and the gauges of its state, with r
// unless r is nil.
func newMetrics(r prometheus.Registerer, s *state) metrics {
	f := promauto.With(r)
	gauge := func(name, help string, value func() int64) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	gauge("byre_watch_revision", "Last revision that the feed has applied.", s.progress.Revision)
	gauge("byre_watch_resources", "Resources whose current state is in memory.", func() int64 {
		resources, _ := s.size()
		return int64(resources)
	})
	gauge("byre_watch_state_bytes",
		"Bytes that the values of current state take in memory, where most are compressed.",
		func() int64 {
			_, bytes := s.size()
			return int64(bytes)
		})
	m := metrics{
		applied: f.NewCounter(prometheus.CounterOpts{
			Name: "byre_watch_changes_total",
			Help: "Changes of the store that the feed has applied.",
		}),
		resets: f.NewCounterVec(prometheus.CounterOpts{
			Name: "byre_watch_resets_total",
			Help: "Times that all state in memory was read again, by reason: compacted, restored or hole. A hole is a fault of the store.",
		}, []string{"reason"}),
	}
	for _, reason := range []string{resetCompacted, resetHole, resetRestored} {
		m.resets.WithLabelValues(reason) // so that an alert sees the counter at 0 before its first increment
	}
	return m
}
