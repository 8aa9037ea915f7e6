package watch

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"

	"byre/sqlstore"
)

// historyBytes bounds the pages of history in memory.
const historyBytes = 16 << 20

// history reads the changes that have left the rings. It reads each page once for all
// subscriptions that need it, because after a restart thousands of watchers resume and read
// the same history.
//
// A page begins after a multiple of pageChanges, so that subscriptions share pages whatever
// their revisions are. If a page ends before the next multiple, because of pageBytes, another
// page begins where it ends.
type history struct {
	mu sync.Mutex
	// cells are the pages in memory, by revision/pageChanges.
	cells map[int64][]*page
	// recent has the same pages; the one that was used last is at the front.
	recent list.List
	// bytes is the sum of the pages' bytes.
	bytes int
	// reads are the reads in flight, by the revision after which their page begins.
	reads map[int64]*pageRead
	// resets counts the calls of forget. fetch does not add a page whose read began
	// before the last one.
	resets int
}

// page has the changes after one revision, up to and including another. It is immutable
// except for recent and used.
type page struct {
	after, end int64
	events     map[Resource][]Event
	bytes      int
	// recent is its element in history.recent. used is set when the page is used, and
	// cleared by dropUnused. history.mu guards both.
	recent *list.Element
	used   bool
}

// pageRead is a read of a page in flight. page and err are set before done is closed.
type pageRead struct {
	done chan struct{}
	page *page
	err  error
}

// eventBytes is about the memory of an event without its values.
const eventBytes = 400

// newPage makes a page of the changes after a revision. If one change wrote a state and a later
// one of the page replaced it, both events have the same Entry, so that it is decoded once.
func newPage(after int64, changes []sqlstore.Change) (*page, error) {
	p := &page{after: after, end: after, events: map[Resource][]Event{}}
	written := make(map[int64]*Entry, len(changes))
	for _, c := range changes {
		if c.Revision != p.end+1 {
			return nil, fmt.Errorf("%w: %d comes after %d", errHole, c.Revision, p.end)
		}
		p.end = c.Revision
		p.bytes += eventBytes
		ev := eventOf(c)
		if c.Old != nil {
			if same := written[c.Old.Revision]; same != nil {
				ev.Old = same
			} else {
				p.bytes += len(c.Old.Value)
			}
		}
		if ev.New != nil {
			written[c.Revision] = ev.New
			p.bytes += len(c.New.Value)
		}
		r := resourceOf(c.New.Key)
		p.events[r] = append(p.events[r], ev)
	}
	if p.end == after {
		return nil, fmt.Errorf("%w: nothing comes after %d", errHole, after)
	}
	return p, nil
}

// loadPage returns a page that has the change after a revision, which the feed has applied. The
// page comes from memory or from the store.
func (f *Feed) loadPage(ctx context.Context, revision int64) (*page, error) {
	after := revision - revision%pageChanges
	for {
		p, err := f.readPage(ctx, after, revision)
		switch {
		case errors.Is(err, ErrCompacted) && after < revision:
			// The beginning of the page is compacted. If its end is not, the page
			// begins after the compacted revision.
			state, err := f.State(ctx)
			if err != nil {
				return nil, err
			}
			if after < state.Compacted && state.Compacted <= revision {
				after = state.Compacted
				continue
			}
		case err != nil || p.end > revision:
			return p, err
		}
		after = revision
	}
}

// readPage returns a page that is in memory and has the change after revision. If there is
// none it reads the page that begins after the revision after.
func (f *Feed) readPage(ctx context.Context, after, revision int64) (*page, error) {
	f.history.mu.Lock()
	if p := f.history.find(after, revision); p != nil {
		f.history.mu.Unlock()
		return p, nil
	}
	read := f.history.reads[after]
	mine := read == nil
	if mine {
		read = &pageRead{done: make(chan struct{})}
		f.history.reads[after] = read
	}
	resets := f.history.resets
	f.history.mu.Unlock()
	if mine && !f.spawn(func() { f.fetch(read, after, resets) }) {
		return nil, ErrClosed
	}
	if err := f.wait(ctx, read.done); err != nil {
		return nil, err
	}
	return read.page, read.err
}

// fetch reads one page.
func (f *Feed) fetch(read *pageRead, after int64, resets int) {
	limit := min(pageChanges-after%pageChanges, f.Revision()-after)
	var changes []sqlstore.Change
	if read.err = ErrCompacted; limit > 0 { // otherwise the feed has adopted a state before the page
		changes, read.err = f.source.Changes(f.running, sqlstore.ChangesQuery{After: after, Limit: int(limit), Size: pageBytes})
	}
	if read.err == nil {
		read.page, read.err = newPage(after, changes)
	}
	if errors.Is(read.err, errHole) {
		f.opts.Logger.Error("watch: history is broken; watches that need it end, and their clients list again", "error", read.err)
		read.err = fmt.Errorf("%w: %w", ErrCompacted, read.err)
	}
	h := &f.history
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.resets == resets {
		delete(h.reads, after)
		if read.err == nil {
			h.add(read.page)
		}
	}
	close(read.done)
}

// find returns a page in memory that has the change after revision, or else the one that begins
// after the revision after; nil if there is neither.
func (h *history) find(after, revision int64) *page {
	var found *page
	for _, p := range h.cells[after/pageChanges] {
		if p.after <= revision && revision < p.end {
			found = p
			break
		}
		if p.after == after {
			found = p
		}
	}
	if found != nil {
		h.recent.MoveToFront(found.recent)
		found.used = true
	}
	return found
}

// add adds a page, and drops those that were not used for longest until the rest fits.
func (h *history) add(p *page) {
	cell := p.after / pageChanges
	for _, other := range h.cells[cell] {
		if other.after == p.after {
			h.drop(other) // it was read earlier, when the store had fewer changes
			break
		}
	}
	h.cells[cell] = append(h.cells[cell], p)
	p.recent, p.used = h.recent.PushFront(p), true
	h.bytes += p.bytes
	for h.bytes > historyBytes && h.recent.Len() > 1 {
		h.drop(h.recent.Back().Value.(*page))
	}
}

func (h *history) drop(p *page) {
	cell := p.after / pageChanges
	pages := h.cells[cell]
	for i, other := range pages {
		if other == p {
			pages = append(pages[:i:i], pages[i+1:]...)
			break
		}
	}
	if h.cells[cell] = pages; len(pages) == 0 {
		delete(h.cells, cell)
	}
	h.recent.Remove(p.recent)
	h.bytes -= p.bytes
}

// forget drops all pages, because their changes may belong to a history that was lost.
func (h *history) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cells = map[int64][]*page{}
	h.reads = map[int64]*pageRead{}
	h.recent.Init()
	h.bytes = 0
	h.resets++
}

// fillRing adds the events of before the resource was loaded to the ring of a resource cache,
// page by page, the newest page first. Watchers that resume after a restart then find them in
// memory. It ends at the beginning of the history, when the ring is full, and when it has read
// three quarters of historyBytes: then the pages are still in memory when the ring of the next
// resource is filled.
//
// It waits for an Interval first, because at a start it would delay what the server needs to
// become ready. Watchers that resume earlier read the pages themselves.
func (f *Feed) fillRing(ctx context.Context, rc *resourceCache) {
	if !sleep(ctx, f.opts.Interval) {
		return
	}
	for budget := historyBytes * 3 / 4; budget > 0; {
		since, compacted, full := f.ringStart(rc)
		if full || since <= compacted {
			return
		}
		after := max((since-1)/pageChanges*pageChanges, compacted)
		var events []Event
		for end := after; end < since; {
			p, err := f.loadPage(ctx, end)
			if err != nil {
				return // a subscription that needs the page reads it again, and returns the error
			}
			for _, ev := range p.events[rc.resource] {
				if ev.Revision > end && ev.Revision <= since {
					events = append(events, ev)
				}
			}
			end = p.end
			budget -= p.bytes
		}
		if !f.prepend(rc, events, after, since) {
			return
		}
	}
}

// ringStart returns the revision after which the ring is complete, the compacted revision, and
// whether the ring takes no more events at its beginning.
func (f *Feed) ringStart(rc *resourceCache) (since, compacted int64, full bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return rc.ring.since, f.compacted, rc.dropped || !rc.loaded || rc.ring.isFull()
}

// prepend adds the events after one revision, up to another (since), at the beginning of a ring
// that is complete after since. It returns false if the ring is not complete after since any
// more, or is full.
func (f *Feed) prepend(rc *resourceCache, events []Event, after, since int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if rc.dropped || !rc.loaded || rc.ring.since != since {
		return false
	}
	for i := len(events) - 1; i >= 0; i-- {
		ev := events[i]
		if ev.New != nil {
			// If the state is still current, the event uses the entry in the tree.
			if e, _ := rc.tree.Get(ev.New); e != nil && e.Revision == ev.Revision {
				ev.New = e
			}
		}
		if !rc.ring.prepend(ev) {
			rc.ring.since = ev.Revision
			return false
		}
	}
	rc.ring.since = after
	return true
}
