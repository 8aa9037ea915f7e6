package watch

import (
	"context"
	"maps"
	"time"

	"byre/sqlstore"
)

// Usage is the number of objects of a resource, and the number of bytes of their stored
// values.
type Usage struct{ Objects, Bytes int64 }

// usages counts objects and bytes by resource. After each adoption the database counts them
// once, in the background. From then on every event changes the counts. Feed.mu guards it.
type usages struct {
	// counted is closed when the feed has adopted the database's counts, and when the
	// feed adopts another state before that.
	counted chan struct{}
	// byResource is nil until the feed has the database's counts. It has no entry for a
	// resource without objects. Invariant: the counts are those of the store at
	// Feed.revision, because applyLocked counts every event.
	byResource map[sqlstore.Resource]Usage
	// backlog has the events that were applied since the database began to count: the
	// database's counts may lack the last of them. Invariant: while isCounting is true, it
	// has all events after the revision from; otherwise adoptUsage refuses the counts. It
	// is empty between two attempts, and has at most maxUsageBacklog entries, so that it
	// takes bounded memory however long the database can't count.
	backlog    []usageChange
	from       int64
	isCounting bool
}

type usageChange struct {
	revision       int64
	resource       sqlstore.Resource
	objects, bytes int64
}

const (
	// usageTimeout bounds one attempt of the database to count. Millions of objects take
	// seconds.
	usageTimeout = 5 * time.Minute
	// maxUsageBacklog bounds usages.backlog: that many entries take about 16 MiB.
	maxUsageBacklog = 1 << 18
)

func newUsages() usages { return usages{counted: make(chan struct{})} }

// Usage returns the usage of a resource. It returns false while the usage is not known yet, for a
// moment after each adoption.
func (f *Feed) Usage(r sqlstore.Resource) (Usage, bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.usages.byResource[r], f.usages.byResource != nil
}

// WaitForUsage waits until the usage of a resource is known, and returns it. It fails with
// ErrClosed and with the context's error.
func (f *Feed) WaitForUsage(ctx context.Context, r sqlstore.Resource) (Usage, error) {
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

// AllUsage returns the usage of every resource that has objects; nil while it is not known. The
// map is the caller's.
func (f *Feed) AllUsage() map[sqlstore.Resource]Usage {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return maps.Clone(f.usages.byResource)
}

// countUsage asks the database for the counts until the feed has adopted them or ctx ends. Each
// adoption of the store's state starts it again, with another channel counted; then an earlier
// call returns.
func (f *Feed) countUsage(ctx context.Context, counted chan struct{}) {
	isFailing := false
	for f.beginCount(counted) {
		usage, err := f.readUsage(ctx)
		if err == nil && f.adoptUsage(usage, counted) {
			return
		}
		if ctx.Err() != nil || !f.endCount(counted) {
			return
		}
		if err != nil && !isFailing {
			f.opts.Logger.Warn("watch: can't count what is stored; trying again", "error", err)
			isFailing = true
		}
		if !sleep(ctx, f.opts.Interval) {
			return
		}
	}
}

// beginCount begins an attempt to count. It returns false if the feed has adopted another state
// since.
func (f *Feed) beginCount(counted chan struct{}) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := &f.usages
	if u.counted != counted {
		return false
	}
	u.isCounting, u.from = true, f.revision
	return true
}

// endCount ends an attempt that has failed. It returns false if the feed has adopted another
// state since.
func (f *Feed) endCount(counted chan struct{}) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := &f.usages
	if u.counted != counted {
		return false
	}
	u.isCounting, u.backlog = false, nil
	return true
}

// readUsage reads the database's counts, and waits until the feed has applied their revision.
func (f *Feed) readUsage(ctx context.Context) (sqlstore.Usage, error) {
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	a := f.adoption()
	usage, err := f.source.Usage(ctx)
	if err != nil {
		return usage, err
	}
	return usage, f.awaitApplied(ctx, usage.Revision, a)
}

// adoptUsage adopts the database's counts, and adds the events after their revision. It returns
// false if the backlog does not have all of those events.
func (f *Feed) adoptUsage(usage sqlstore.Usage, counted chan struct{}) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := &f.usages
	if u.counted != counted || !u.isCounting || usage.Revision < u.from {
		return false
	}
	u.byResource = make(map[sqlstore.Resource]Usage, len(usage.Resources))
	for _, r := range usage.Resources {
		u.byResource[sqlstore.Resource{Group: r.Group, Resource: r.Resource, Owner: r.Owner}] = Usage{r.Objects, r.Bytes}
	}
	for _, c := range u.backlog {
		if c.revision > usage.Revision {
			u.add(c)
		}
	}
	u.backlog, u.isCounting = nil, false
	close(u.counted)
	return true
}

// resetUsageLocked drops the counts and has the database count again.
func (f *Feed) resetUsageLocked() {
	if f.usages.byResource == nil {
		close(f.usages.counted) // so that WaitForUsage waits for the next counts
	}
	f.usages = newUsages()
	if f.closed {
		return
	}
	counted := f.usages.counted
	f.group.Go(func() { f.countUsage(f.running, counted) })
}

// apply counts one event.
func (u *usages) apply(ev Event) {
	c := usageChange{revision: ev.Revision, resource: ev.Key().Of(), bytes: -ev.oldBytes}
	if ev.New != nil {
		c.objects++
		c.bytes += int64(len(ev.New.Value))
	}
	if ev.Old != nil {
		c.objects--
	}
	switch {
	case u.byResource != nil:
		u.add(c)
	case !u.isCounting:
	case len(u.backlog) == maxUsageBacklog:
		u.backlog, u.isCounting = nil, false
	default:
		u.backlog = append(u.backlog, c)
	}
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
