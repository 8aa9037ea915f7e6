package watch

import (
	"context"
	"maps"
	"sync"
	"time"

	"byre/sqlstore"
)

// Usage is the number of objects of a resource, and the number of bytes of their stored
// values.
type Usage struct{ Objects, Bytes int64 }

// usages counts objects and bytes by resource. In each generation the database counts them
// once, in the background. From then on every event changes the counts.
type usages struct {
	source    Source
	opts      Options
	lifecycle *lifecycle
	progress  *progress

	mu sync.RWMutex // guards what follows
	// counted is closed when the feed has taken over the database's counts, and when the
	// feed takes over another state before that.
	counted chan struct{}
	// byResource is nil until the feed has the database's counts. It has no entry for a
	// resource without objects. Invariant: the counts are those of the store at revision,
	// because apply counts every event.
	byResource map[sqlstore.Resource]Usage
	// revision is that of the last event that was counted.
	revision int64
	// backlog has the events that were applied since the database began to count: the
	// database's counts may lack the last of them. Invariant: while isCounting is true, it
	// has all events after the revision from; otherwise endCount refuses the counts. It
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

// Usage returns the usage of a resource. It returns false while the usage is not known yet, for a
// moment after each restart.
func (u *usages) Usage(r sqlstore.Resource) (Usage, bool) {
	u.mu.RLock()
	defer u.mu.RUnlock()
	return u.byResource[r], u.byResource != nil
}

// WaitForUsage waits until the usage of a resource is known, and returns it. It fails with
// ErrClosed and with the context's error.
func (u *usages) WaitForUsage(ctx context.Context, r sqlstore.Resource) (Usage, error) {
	for {
		u.mu.RLock()
		usage, known, counted := u.byResource[r], u.byResource != nil, u.counted
		u.mu.RUnlock()
		if known {
			return usage, nil
		}
		if err := u.lifecycle.wait(ctx, counted); err != nil {
			return Usage{}, err
		}
	}
}

// AllUsage returns the usage of every resource that has objects; nil while it is not known. The
// map is the caller's.
func (u *usages) AllUsage() map[sqlstore.Resource]Usage {
	u.mu.RLock()
	defer u.mu.RUnlock()
	return maps.Clone(u.byResource)
}

// restart drops the counts, because the feed takes over a state of a revision. The caller then has the
// database count again.
func (u *usages) restart(revision int64) (counted chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.byResource == nil {
		close(u.counted) // so that WaitForUsage waits for the next counts
	}
	u.counted, u.byResource, u.revision = make(chan struct{}), nil, revision
	u.backlog, u.isCounting = nil, false
	return u.counted
}

// count asks the database for the counts until the feed has taken them over or ctx ends. Each
// restart of the feed starts it again, with another channel counted; then an earlier
// call returns.
func (u *usages) count(ctx context.Context, counted chan struct{}) {
	isFailing := false
	for u.beginCount(counted) {
		usage, err := u.read(ctx)
		if u.endCount(usage, err, counted) || ctx.Err() != nil {
			return
		}
		if err != nil && !isFailing {
			u.opts.Logger.Warn("watch: can't count what is stored; trying again", "error", err)
			isFailing = true
		}
		if !sleep(ctx, u.opts.Interval) {
			return
		}
	}
}

// beginCount begins an attempt to count. It returns false if the feed has taken over another state
// since.
func (u *usages) beginCount(counted chan struct{}) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.counted != counted {
		return false
	}
	u.isCounting, u.from = true, u.revision
	return true
}

// read reads the database's counts, and waits until the feed has applied their revision.
func (u *usages) read(ctx context.Context) (sqlstore.Usage, error) {
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	a := u.progress.generation.Load()
	usage, err := u.source.Usage(ctx)
	if err != nil {
		return usage, err
	}
	return usage, u.progress.awaitApplied(ctx, usage.Revision, a)
}

// endCount ends an attempt to count. It takes over the database's counts, and adds the events after
// their revision. It returns false if there must be another attempt: the database has failed, or
// the backlog does not have all of those events.
func (u *usages) endCount(usage sqlstore.Usage, err error, counted chan struct{}) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.counted != counted {
		return true // the feed has taken over another state since
	}
	backlog, isComplete := u.backlog, u.isCounting && usage.Revision >= u.from
	u.backlog, u.isCounting = nil, false
	if err != nil || !isComplete {
		return false
	}
	u.byResource = make(map[sqlstore.Resource]Usage, len(usage.Resources))
	for _, r := range usage.Resources {
		u.byResource[sqlstore.Resource{Group: r.Group, Resource: r.Resource, Owner: r.Owner}] = Usage{r.Objects, r.Bytes}
	}
	for _, c := range backlog {
		if c.revision > usage.Revision {
			u.add(c)
		}
	}
	close(u.counted)
	return true
}

// apply counts events.
func (u *usages) apply(events []Event) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, ev := range events {
		c := usageChange{revision: ev.Revision, resource: ev.Key().Of(), bytes: -ev.oldBytes}
		if ev.New != nil {
			c.objects++
			c.bytes += int64(ev.New.Size())
		}
		if ev.Old != nil {
			c.objects--
		}
		u.revision = ev.Revision
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
