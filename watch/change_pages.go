package watch

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"byre/sqlstore"
)

// changePageBytes bounds the pages of history in memory.
const changePageBytes = 16 << 20

// changePages reads the changes that have left the rings, those of one resource at a time: a watch of
// a resource that seldom changes does not read the changes of others. It reads each page once for
// all subscriptions that need it, because after a restart thousands of watchers resume and read
// the same history.
//
// A page begins after a multiple of pageChanges, so that subscriptions share pages whatever
// their revisions are. It has at most pageChanges changes. If it ends before the next multiple,
// because of pageBytes, another page begins at the revision that a subscription needs.
type changePages struct {
	source    Source
	lifecycle *lifecycle
	progress  *progress
	logger    *slog.Logger

	mu sync.Mutex // guards what follows
	// pages are the pages in memory. Those of one resource may overlap.
	pages map[sqlstore.Resource][]*page
	// recent has the same pages; the one that was used last is at the front.
	recent list.List
	// bytes is the sum of the pages' bytes.
	bytes int
	// reads are the reads in flight that began since the last call of forget. fetch does not
	// add a page of an earlier one.
	reads map[pageKey]*pageRead
}

func newChangePages(source Source, logger *slog.Logger, l *lifecycle, p *progress) *changePages {
	c := &changePages{source: source, lifecycle: l, progress: p, logger: logger}
	c.forget()
	return c
}

// pageKey is what a page is read by: its resource, and the revision after which it begins.
type pageKey struct {
	resource sqlstore.Resource
	after    int64
}

// page has all changes of a resource after one revision, up to and including another. It is
// immutable except for recent and used.
type page struct {
	pageKey
	end    int64
	events []Event
	bytes  int
	// recent is its element in changePages.recent. used is set when the page is used, and
	// cleared by dropUnused. changePages.mu guards both.
	recent *list.Element
	used   bool
}

// pageRead is a read of a page in flight. page and err are set before done is closed.
type pageRead struct {
	done chan struct{}
	page *page
	err  error
}

// eventBytes is about the memory of an event without its values, and of a page without its
// events.
const eventBytes = 400

// newPage makes a page of the changes that were read when the feed was at the revision upTo.
// Later changes are left out. If one change wrote a state and a later one of the page replaced it,
// both events have the same Entry, so that it is decoded once. newPage fails with errHole if a change
// does not follow from the one before of its object in the page, because another one is missing. A
// missing change that no later one of its object in the page shows is not noticed.
func newPage(key pageKey, upTo int64, changes []sqlstore.Change) (*page, error) {
	p := &page{pageKey: key, end: upTo, bytes: eventBytes}
	size := 0
	last := make(map[sqlstore.Key]*Entry, len(changes)) // nil after a delete
	for _, c := range changes {
		if c.Revision > upTo {
			break
		}
		size += c.Size()
		p.bytes += eventBytes
		ev := eventOf(c)
		switch before, isThere := last[c.New.Key]; {
		case c.Old == nil && before == nil:
		case c.Old != nil && before != nil && c.Old.Revision == before.Revision:
			ev.Old = before
		case c.Old != nil && !isThere && c.Old.Revision <= key.after:
			p.bytes += len(c.Old.Value)
		default:
			return nil, fmt.Errorf("%w: %d (%s) does not follow from the change before of its object", errHole, c.Revision, c.Op)
		}
		last[c.New.Key] = ev.New
		if ev.New != nil {
			p.bytes += len(c.New.Value)
		}
		p.events = append(p.events, ev)
	}
	if n := len(p.events); n == pageChanges || size >= pageBytes {
		p.end = p.events[n-1].Revision // the store may have more changes up to upTo
	}
	return p, nil
}

// load returns a page of a resource that begins at or before a revision and ends after it. The
// feed has applied the revision. The page comes from memory or from the store.
func (c *changePages) load(ctx context.Context, r sqlstore.Resource, revision int64) (*page, error) {
	after := revision - revision%pageChanges
	for {
		p, err := c.read(ctx, pageKey{r, after}, revision)
		switch {
		case errors.Is(err, ErrCompacted) && after < revision:
			// The beginning of the page is compacted. If its end is not, the page
			// begins after the compacted revision.
			compacted, err := c.source.Compacted(ctx, r)
			if err != nil {
				return nil, err
			}
			if after < compacted && compacted <= revision {
				after = compacted
				continue
			}
		case err != nil || p.end > revision:
			return p, err
		}
		after = revision
	}
}

// read returns a page that is in memory and goes on after revision. If there is none it reads
// the page of a key.
func (c *changePages) read(ctx context.Context, key pageKey, revision int64) (*page, error) {
	c.mu.Lock()
	if p := c.find(key, revision); p != nil {
		c.mu.Unlock()
		return p, nil
	}
	read := c.reads[key]
	mine := read == nil
	if mine {
		read = &pageRead{done: make(chan struct{})}
		c.reads[key] = read
	}
	c.mu.Unlock()
	if mine && !c.lifecycle.spawn(func(ctx context.Context) { c.fetch(ctx, read, key) }) {
		return nil, ErrClosed
	}
	if err := c.lifecycle.wait(ctx, read.done); err != nil {
		return nil, err
	}
	return read.page, read.err
}

// fetch reads one page from the store.
func (c *changePages) fetch(ctx context.Context, read *pageRead, key pageKey) {
	upTo := c.progress.Revision()
	var changes []sqlstore.Change
	if read.err = ErrCompacted; key.after < upTo { // otherwise the feed has taken over a state before the page
		of := key.resource
		changes, read.err = c.source.Changes(ctx,
			sqlstore.ChangesQuery{After: key.after, Of: &of, Limit: pageChanges, Size: pageBytes})
	}
	if read.err == nil {
		read.page, read.err = newPage(key, upTo, changes)
	}
	if errors.Is(read.err, errHole) {
		c.logger.Error("watch: history is broken; watches that need it end, and their clients list again", "error", read.err)
		read.err = fmt.Errorf("%w: %w", ErrCompacted, read.err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reads[key] == read {
		delete(c.reads, key)
		if read.err == nil {
			c.add(read.page)
		}
	}
	close(read.done)
}

// find returns a page in memory that begins at or before revision and ends after it, or else the
// one of a key; nil if there is neither.
func (c *changePages) find(key pageKey, revision int64) *page {
	var found *page
	for _, p := range c.pages[key.resource] {
		if p.after <= revision && revision < p.end {
			found = p
			break
		}
		if p.after == key.after {
			found = p
		}
	}
	if found != nil {
		c.recent.MoveToFront(found.recent)
		found.used = true
	}
	return found
}

// add adds a page, and drops those that were not used for longest until the rest fits.
func (c *changePages) add(p *page) {
	for _, other := range c.pages[p.resource] {
		if other.after == p.after {
			c.drop(other) // it was read earlier, when the store had fewer changes
			break
		}
	}
	c.pages[p.resource] = append(c.pages[p.resource], p)
	p.recent, p.used = c.recent.PushFront(p), true
	c.bytes += p.bytes
	for c.bytes > changePageBytes && c.recent.Len() > 1 {
		c.drop(c.recent.Back().Value.(*page))
	}
}

func (c *changePages) drop(p *page) {
	pages := slices.DeleteFunc(c.pages[p.resource], func(other *page) bool { return other == p })
	if c.pages[p.resource] = pages; len(pages) == 0 {
		delete(c.pages, p.resource)
	}
	c.recent.Remove(p.recent)
	c.bytes -= p.bytes
}

// forget drops all pages, because their changes may belong to a history that was lost.
func (c *changePages) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pages = map[sqlstore.Resource][]*page{}
	c.reads = map[pageKey]*pageRead{}
	c.recent.Init()
	c.bytes = 0
}

// dropUnused drops the pages that were not used since the last call.
func (c *changePages) dropUnused() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, pages := range c.pages {
		for _, p := range slices.Clone(pages) {
			if !p.used {
				c.drop(p)
			}
			p.used = false
		}
	}
}
