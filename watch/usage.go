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

// usages counts objects and bytes by resource. The database adds them up once, in the
// background; then every event changes the counts. It is guarded by Feed.mu.
type usages struct {
	// counted is closed when the feed has adopted the database's sums, and when it waits
	// for other sums instead.
	counted chan struct{}
	// byResource has no entry for a resource without objects; it is nil before the
	// sums are there. Invariant: it is what the store holds at Feed.revision.
	byResource map[Resource]Usage
	// backlog are the events applied since the database began to add up, of which
	// its sums may lack the last ones. Invariant: it is complete from the revision
	// after from on, or isCounting is false and the sums of this attempt are void.
	// It is empty between two attempts, and has at most maxUsageBacklog entries, so
	// that a database that can't add up for hours costs no memory.
	backlog    []usageChange
	from       int64
	isCounting bool
}

type usageChange struct {
	revision       int64
	resource       Resource
	objects, bytes int64
}

const (
	// usageTimeout bounds one attempt to add up: millions of objects take seconds.
	usageTimeout = 5 * time.Minute
	// maxUsageBacklog takes about 16 MiB.
	maxUsageBacklog = 1 << 18
)

func newUsages() usages { return usages{counted: make(chan struct{})} }

// Usage returns what is stored of a resource. It is false while that is not
// known yet, which is for a moment after the start.
func (f *Feed) Usage(r Resource) (Usage, bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.usages.byResource[r], f.usages.byResource != nil
}

// WaitForUsage waits until the usage is known, and returns it.
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

// countUsage asks the database for the sums until it has answered or ctx ends. Each
// adoption calls it again, and drops the sums from before.
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

// beginCount begins an attempt. It returns false when the sums are not wanted any
// more.
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

// endCount ends an attempt that has failed. It returns false when the sums are not
// wanted any more.
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

// readUsage returns sums of a revision that the feed has applied.
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

// adoptUsage adopts sums. It returns false if the backlog does not have the events that
// the sums lack.
func (f *Feed) adoptUsage(usage sqlstore.Usage, counted chan struct{}) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := &f.usages
	if u.counted != counted || !u.isCounting || usage.Revision < u.from {
		return false
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
	u.backlog, u.isCounting = nil, false
	close(u.counted)
	return true
}

// resetUsageLocked drops the sums and has the database add up again.
func (f *Feed) resetUsageLocked() {
	if f.usages.byResource == nil {
		close(f.usages.counted) // who waits for these sums waits for the next ones
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
	c := usageChange{revision: ev.Revision, resource: resourceOf(ev.Key()), bytes: -ev.oldBytes}
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
