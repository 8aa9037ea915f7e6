package watch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"byre/sqlstore"
)

// Run tails the store until ctx ends, and returns nil then. It reads the
// store's state first and tries again while that fails.
func (f *Feed) Run(ctx context.Context) error {
	f.running = ctx
	if f.begin(ctx) {
		f.group.Go(func() { f.tail(ctx) })
		f.group.Go(func() { f.wakeWatchers(ctx) })
		f.group.Go(func() { f.janitor(ctx) })
		if l, ok := f.source.(Listener); ok && !f.opts.SoleWriter {
			f.group.Go(func() { f.listen(ctx, l) })
		}
		<-ctx.Done()
	}
	f.mu.Lock()
	f.closed = true
	close(f.done)
	f.mu.Unlock()
	f.group.Wait()
	return nil
}

// begin finds out where the store is. It returns false when ctx ended first.
func (f *Feed) begin(ctx context.Context) bool {
	for {
		state, err := f.readState(ctx)
		if err == nil {
			f.mu.Lock()
			f.adoptLocked(state)
			f.resetUsageLocked()
			f.drainLocked()
			f.mu.Unlock()
			close(f.started)
			signal(f.kick)
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

func (f *Feed) adoptLocked(state sqlstore.State) {
	f.begun = true
	f.revision, f.compacted, f.epoch = state.Revision, state.Compacted, state.Epoch
	close(f.adopted)
	f.adopted = make(chan struct{})
	f.reachedLocked()
}

// tail reads from the store what does not come by Publish.
func (f *Feed) tail(ctx context.Context) {
	timer := time.NewTimer(f.opts.Interval)
	defer timer.Stop()
	failing := false
	for {
		polled := false
		select {
		case <-ctx.Done():
			return
		case <-f.kick:
		case <-timer.C:
			polled = true
		}
		err := f.catchUp(ctx, polled || f.asked())
		if ctx.Err() != nil {
			return
		}
		if (err != nil) != failing {
			failing = err != nil
			f.report(err)
		}
		if f.opts.SoleWriter && !failing {
			continue // nothing happens that is not published
		}
		timer.Reset(f.opts.Interval)
	}
}

// asked says whether the store is to be asked where it is.
func (f *Feed) asked() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	ask := f.ask
	f.ask = false
	return ask
}

func (f *Feed) report(err error) {
	if err != nil {
		f.opts.Logger.Warn("watch: can't follow the store; trying again", "error", err)
		return
	}
	f.opts.Logger.Info("watch: following the store again")
}

// errHole: the store's revisions are not dense.
var errHole = errors.New("revisions have a hole")

// catchUp applies what the store has and the feed has not. It asks the store
// for its state only when polled: otherwise somebody said what there is.
func (f *Feed) catchUp(ctx context.Context, polled bool) error {
	if polled && !f.opts.SoleWriter {
		if err := f.poll(ctx); err != nil {
			return err
		}
	}
	for {
		g := f.gap()
		if g.limit == 0 {
			return nil
		}
		changes, err := f.source.Changes(ctx, g.after, g.limit, pageBytes)
		switch {
		case errors.Is(err, sqlstore.ErrCompacted):
			f.opts.Logger.Warn("watch: fell behind compaction; reading everything again", "revision", g.after)
			return f.reset(ctx, resetCompacted)
		case err != nil:
			return err
		}
		if err := f.extend(g, changes); err != nil {
			f.opts.Logger.Error("watch: history is broken; reading everything again", "error", err)
			return f.reset(ctx, resetHole)
		}
	}
}

// poll looks for changes nobody told of, and for a new epoch: the store has lost
// commits, or was restored.
func (f *Feed) poll(ctx context.Context) error {
	before := f.Revision()
	state, err := f.readState(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	restarted := state.Epoch != f.epoch || state.Revision < before
	f.compacted = max(f.compacted, state.Compacted)
	f.target = max(f.target, state.Revision)
	f.mu.Unlock()
	if restarted {
		f.opts.Logger.Warn("watch: the store's history has started again; reading everything, and ending all watches",
			"applied", before, "revision", state.Revision, "epoch", state.Epoch)
		return f.reset(ctx, resetRestored)
	}
	return nil
}

// gap is what is to be read next: limit changes after a revision, because
// target is said to exist. A limit of 0 means nothing.
type gap struct {
	after, target int64
	limit         int
}

func (f *Feed) gap() gap {
	f.mu.RLock()
	defer f.mu.RUnlock()
	g := gap{after: f.revision, target: f.target}
	if f.target > f.revision {
		g.limit = pageChanges
		if len(f.pending) > 0 {
			g.limit = int(min(pageChanges, f.pending[0].Revision-1-f.revision))
		}
	}
	return g
}

// extend applies changes read for a gap, and what they were missing for.
func (f *Feed) extend(g gap, changes []sqlstore.Change) error {
	for i, c := range changes {
		if c.Revision != g.after+int64(i)+1 {
			return fmt.Errorf("%w: %d comes after %d", errHole, c.Revision, g.after+int64(i))
		}
	}
	batch := f.prepare(changes)
	f.mu.Lock()
	for _, p := range batch {
		if p.Revision == f.revision+1 {
			f.applyLocked(p)
		}
	}
	f.drainLocked()
	var err error
	if len(changes) == 0 && f.revision == g.after && f.target == g.target {
		if len(f.pending) > 0 {
			err = fmt.Errorf("%w: %d was committed, %d is not there", errHole, f.pending[0].Revision, g.after+1)
		}
		// What was said to exist does not yet.
		f.target = f.revision
	}
	dirty := len(f.dirty) > 0
	f.mu.Unlock()
	if dirty {
		signal(f.wake)
	}
	return err
}

// reset forgets all state and starts again from where the store is now.
func (f *Feed) reset(ctx context.Context, reason string) error {
	state, err := f.readState(ctx)
	if err != nil {
		return err
	}
	f.metrics.resets.WithLabelValues(reason).Inc()
	f.history.forget()
	f.mu.Lock()
	for _, h := range f.caches {
		f.dropLocked(h)
	}
	f.pending = nil
	if state.Epoch != f.epoch {
		f.target = 0 // of another history
	}
	// What was published since the state was read is to be read from the store.
	f.target = max(f.target, state.Revision)
	f.adoptLocked(state)
	f.resetUsageLocked()
	behind := f.target > f.revision
	f.mu.Unlock()
	signal(f.wake)
	if behind {
		signal(f.kick)
	}
	return nil
}

// hint is told that a revision exists, or, with 0, that others may.
func (f *Feed) hint(revision int64) {
	f.mu.Lock()
	f.ask = f.ask || revision == 0
	behind := f.ask || revision > f.revision
	f.target = max(f.target, revision)
	f.mu.Unlock()
	if behind {
		signal(f.kick)
	}
}

// listen keeps a Listener listening. The poll goes on meanwhile, so that a
// broken Listener costs a delay and nothing else.
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

// wakeWatchers wakes the subscribers whose scopes were touched. It is a goroutine of
// its own so that a writer does not pay for them.
func (f *Feed) wakeWatchers(ctx context.Context) {
	var fired []*watcher
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		}
		f.mu.Lock()
		dirty := f.dirty
		f.dirty = map[*resourceCache]struct{}{}
		f.mu.Unlock()
		for h := range dirty {
			fired = f.touchedWatchers(h, fired[:0])
			notify(fired)
			clear(fired)
		}
	}
}

// touchedWatchers collects the watchers of h that its new events concern.
func (f *Feed) touchedWatchers(h *resourceCache, fired []*watcher) []*watcher {
	ws := &h.watchers
	events, revision, whole := f.unseen(h)
	for _, index := range ws.indexes() {
		for _, ev := range events {
			for _, e := range []*Entry{ev.Old, ev.New} {
				if e != nil {
					index.of(e)
				}
			}
		}
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if !whole {
		return ws.all(fired)
	}
	// Who came after unseen has seen all of events (watcher.pos).
	for _, ev := range events {
		fired = ws.touch(ev, fired)
	}
	ws.woken = max(ws.woken, revision)
	return fired
}

// unseen returns the events that the watchers of h have not been woken for, up
// to a revision; whole is false when they are not in memory any more.
func (f *Feed) unseen(h *resourceCache) (events []Event, revision int64, whole bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	woken, some := h.watchers.wokenUpTo()
	if h.gone || woken < h.ring.since {
		return nil, 0, false
	}
	for i := h.ring.first(woken); i < h.ring.size && some; i++ {
		events = append(events, *h.ring.at(i))
	}
	return events, f.revision, true
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
