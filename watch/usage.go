package watch

import (
	"context"
	"maps"
	"time"

	"byre/sqlstore"
)

// Usage is how many objects there are of a resource, and how many bytes their
// values have as they are stored.
type Usage struct{ Objects, Bytes int64 }

// usages counts what is stored, by resource. The database adds it up once, in
// the background; then every change moves it. It is guarded by Feed.mu.
type usages struct {
	// counted is closed when the database's sums have been taken over, and when
	// others are awaited instead.
	counted chan struct{}
	// byResource has no entry for a resource without objects. Invariant: once
	// counted it is what the store holds at Feed.revision.
	byResource map[Resource]Usage
	// backlog is what was applied while the database was adding up.
	backlog []usageChange
}

type usageChange struct {
	revision       int64
	resource       Resource
	objects, bytes int64
}

// usageTimeout bounds one attempt to add up: millions of objects take seconds.
const usageTimeout = 5 * time.Minute

func newUsages() usages { return usages{counted: make(chan struct{})} }

// Usage returns what is stored of a resource. It is false while that is not
// known yet, which is for a moment after the start.
func (f *Feed) Usage(r Resource) (Usage, bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.usages.byResource[r], f.usages.byResource != nil
}

// WaitForUsage is Usage once it is known.
func (f *Feed) WaitForUsage(ctx context.Context, r Resource) (Usage, error) {
	for {
		f.mu.RLock()
		usage, known, counted := f.usages.byResource[r], f.usages.byResource != nil, f.usages.counted
		f.mu.RUnlock()
		if known {
			return usage, nil
		}
		if err := f.wait(ctx, counted); err != nil {
			return Usage{}, err
		}
	}
}

// AllUsage returns what is stored of every resource that has objects; nil while
// it is not known.
func (f *Feed) AllUsage() map[Resource]Usage {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return maps.Clone(f.usages.byResource)
}

// countUsage lets the database add up, until it has answered or ctx ends. Each
// reset of the feed calls it again; an answer from before the reset is dropped.
func (f *Feed) countUsage(ctx context.Context, counted chan struct{}) {
	failing := false
	for {
		usage, err := f.readUsage(ctx)
		if err == nil {
			f.adoptUsage(usage, counted)
			return
		}
		if ctx.Err() != nil {
			return
		}
		if !failing {
			f.opts.Logger.Warn("watch: can't count what is stored; trying again", "error", err)
			failing = true
		}
		if !sleep(ctx, f.opts.Interval) {
			return
		}
	}
}

// readUsage returns sums of a revision that the feed has applied.
func (f *Feed) readUsage(ctx context.Context) (sqlstore.Usage, error) {
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	usage, err := f.source.Usage(ctx)
	if err != nil {
		return usage, err
	}
	return usage, f.WaitFor(ctx, usage.Revision)
}

func (f *Feed) adoptUsage(usage sqlstore.Usage, counted chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := &f.usages
	if u.counted != counted {
		return // the feed was reset meanwhile
	}
	u.byResource = make(map[Resource]Usage, len(usage.Resources))
	for _, r := range usage.Resources {
		u.byResource[Resource{r.Group, r.Resource, r.Owner}] = Usage{r.Objects, r.Bytes}
	}
	for _, c := range u.backlog {
		if c.revision > usage.Revision {
			u.add(c)
		}
	}
	u.backlog = nil
	close(u.counted)
}

// resetUsageLocked forgets the sums and has them added up again.
func (f *Feed) resetUsageLocked() {
	if f.usages.byResource == nil {
		close(f.usages.counted) // who waits looks again
	}
	f.usages = newUsages()
	if f.closed {
		return
	}
	counted := f.usages.counted
	f.group.Go(func() { f.countUsage(f.running, counted) })
}

// apply takes one change.
func (u *usages) apply(p prepared) {
	c := usageChange{revision: p.Revision, resource: resourceOf(p.New.Key), bytes: int64(len(p.New.Value)) - p.OldBytes}
	switch p.Op {
	case sqlstore.Create:
		c.objects = 1
	case sqlstore.Delete:
		c.objects = -1
	}
	if u.byResource == nil {
		u.backlog = append(u.backlog, c)
		return
	}
	u.add(c)
}

func (u *usages) add(c usageChange) {
	was := u.byResource[c.resource]
	now := Usage{was.Objects + c.objects, was.Bytes + c.bytes}
	if now.Objects <= 0 {
		delete(u.byResource, c.resource)
		return
	}
	u.byResource[c.resource] = now
}
