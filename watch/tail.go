package watch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"byre/sqlstore"
)

// Run follows the store until ctx ends. Then it joins its goroutines and returns nil. It first
// reads the store's state, and tries again while that fails. It may be called once.
func (f *Feed) Run(ctx context.Context) error {
	f.lifecycle.running = ctx
	if f.begin(ctx) {
		f.spawn(f.tail)
		f.spawn(f.wakeWatchers)
		f.spawn(f.unloadUnread)
		if l, ok := f.source.(Listener); ok && !f.isSoleWriter {
			f.spawn(func(ctx context.Context) { f.listen(ctx, l) })
		}
		<-ctx.Done()
	}
	f.stop()
	return nil
}

// begin adopts the store's state for the first time. It returns false when ctx ends
// before the store answers.
func (f *Feed) begin(ctx context.Context) bool {
	for {
		state, err := f.ask(ctx)
		if err == nil {
			f.mu.Lock()
			f.begun = true
			f.adoptLocked(state)
			f.applyPendingLocked()
			f.mu.Unlock()
			close(f.started)
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		f.opts.Logger.Warn("watch: can't read the store's state; trying again", "error", err)
		if !sleep(ctx, f.opts.Interval) {
			return false
		}
	}
}

// adoptLocked makes a state of the store the feed's state, whatever was applied before, and has the
// database count again.
func (f *Feed) adoptLocked(state sqlstore.State) {
	counted := f.usages.reset(state.Revision)
	f.adopt(state)
	f.spawn(func(ctx context.Context) { f.count(ctx, counted) })
}

// tail reads from the store the changes that the feed does not get by Publish: those of other
// processes. It reads when progress.behind receives. It also polls once an Interval, because hints
// may be lost. It does not poll a store that only this process writes to; it reads from that
// store again only after a failure.
func (f *Feed) tail(ctx context.Context) {
	timer := time.NewTimer(f.opts.Interval)
	defer timer.Stop()
	isFailing := false
	for {
		poll := false
		select {
		case <-ctx.Done():
			return
		case <-f.behind:
		case <-timer.C:
			poll = true
		}
		err := f.catchUp(ctx, f.takePollRequest() || poll)
		if ctx.Err() != nil {
			return
		}
		if (err != nil) != isFailing {
			isFailing = err != nil
			f.report(err)
		}
		if !f.isSoleWriter || isFailing {
			timer.Reset(f.opts.Interval)
		}
	}
}

// report logs that the tail fails with err, or works again if err is nil.
func (f *Feed) report(err error) {
	if err != nil {
		f.opts.Logger.Warn("watch: can't follow the store; trying again", "error", err)
		return
	}
	f.opts.Logger.Info("watch: following the store again")
}

// errHole means that a revision is missing in the store, whose revisions must be dense.
var errHole = errors.New("revisions have a hole")

// catchUp applies the changes up to progress.target that the feed lacks. For a poll it first reads
// the store's state, which may raise target.
func (f *Feed) catchUp(ctx context.Context, poll bool) error {
	if poll && !f.isSoleWriter {
		if err := f.poll(ctx); err != nil {
			return err
		}
	}
	for {
		g := f.nextGap()
		if g.limit == 0 {
			return nil
		}
		changes, err := f.source.Changes(ctx, sqlstore.ChangesQuery{After: g.after, Limit: g.limit, Size: pageBytes})
		switch {
		case errors.Is(err, sqlstore.ErrCompacted):
			f.opts.Logger.Warn("watch: fell behind compaction; reading everything again", "revision", g.after)
			return f.reset(ctx, resetCompacted)
		case err != nil:
			return err
		}
		if err := f.fill(g, changes); err != nil {
			f.opts.Logger.Error("watch: history is broken; reading everything again", "error", err)
			return f.reset(ctx, resetHole)
		}
	}
}

// poll reads the store's state, and raises target to its revision. If the state is of another
// epoch, because the store has lost commits or was restored, it resets the feed.
func (f *Feed) poll(ctx context.Context) error {
	before := f.Revision()
	state, err := f.ask(ctx)
	if err != nil {
		return err
	}
	f.observe(state)
	if state.Epoch != f.adopted.Load().epoch || state.Revision < before {
		f.opts.Logger.Warn("watch: the store's history has started again; reading everything, and ending all watches",
			"applied", before, "revision", state.Revision, "epoch", state.Epoch)
		return f.reset(ctx, resetRestored)
	}
	return nil
}

// gap is a range of changes that the feed lacks: up to limit changes after a revision. target is
// progress.target when the gap was found. A limit of 0 means that the feed lacks none.
type gap struct {
	after, target int64
	limit         int
}

// nextGap returns the gap between the last event applied and the first pending one, or else
// target.
func (f *Feed) nextGap() gap {
	f.mu.RLock()
	defer f.mu.RUnlock()
	var g gap
	if g.after, g.target = f.remaining(); g.target > g.after {
		g.limit = pageChanges
		if len(f.pending) > 0 {
			g.limit = int(min(pageChanges, f.pending[0].Revision-1-g.after))
		}
	}
	return g
}

// fill applies the changes that were read for a gap, and then the pending events that are next.
// It fails with errHole if a revision is missing.
func (f *Feed) fill(g gap, changes []sqlstore.Change) error {
	for i, c := range changes {
		if c.Revision != g.after+int64(i)+1 {
			return fmt.Errorf("%w: %d comes after %d", errHole, c.Revision, g.after+int64(i))
		}
	}
	events := f.prepare(changes)
	f.mu.Lock()
	for _, ev := range events {
		if ev.Revision == f.Revision()+1 {
			f.applyLocked(ev)
		}
	}
	f.applyPendingLocked()
	var err error
	if len(changes) == 0 && f.giveUp(g.after, g.target) && len(f.pending) > 0 {
		err = fmt.Errorf("%w: %d was committed, %d is not there", errHole, f.pending[0].Revision, g.after+1)
	}
	dirty := len(f.dirty) > 0
	f.mu.Unlock()
	if dirty {
		signal(f.eventsAdded)
	}
	return err
}

// reset drops all state in memory and adopts the store's current state. reason is one of the
// reasons in metrics.go.
func (f *Feed) reset(ctx context.Context, reason string) error {
	state, err := f.ask(ctx)
	if err != nil {
		return err
	}
	f.metrics.resets.WithLabelValues(reason).Inc()
	f.history.forget()
	f.mu.Lock()
	for _, rc := range f.caches {
		f.dropLocked(rc)
	}
	f.pending = nil
	f.adoptLocked(state)
	f.mu.Unlock()
	signal(f.eventsAdded)
	return nil
}

// Listener is a Source that gets hints of new changes (sqlstore.Shared).
type Listener interface {
	// Listen calls hint for each hint until ctx ends or the connection breaks. A hint may
	// be late, lost or wrong. 0 means that hints may have been lost.
	Listen(ctx context.Context, hint func(revision int64)) error
}

// listen calls Listen again and again until ctx ends. The tail polls meanwhile, so that
// changes are only delayed if Listen fails.
func (f *Feed) listen(ctx context.Context, l Listener) {
	for {
		err := l.Listen(ctx, f.hint)
		if ctx.Err() != nil {
			return
		}
		f.opts.Logger.Debug("watch: listening ended; trying again", "error", err)
		if !sleep(ctx, f.opts.Interval) {
			return
		}
	}
}
