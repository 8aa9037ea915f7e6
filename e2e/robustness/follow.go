package robustness

import (
	"context"
	"time"

	"byre/e2e/robustness/history"
)

// followInterval is how often the log is read: much more often than a compaction can
// forget 1,500 changes.
const followInterval = 100 * time.Millisecond

// follow records the database's log after a revision until ctx ends, and then up to the
// revision that it is at. While the database is away it tries again.
func follow(ctx context.Context, d *Database, r *history.Recorder, namespace string, after int64) {
	var conn *connection
	last := after
	for isLast := false; ; {
		attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		var err error
		if conn == nil {
			conn, err = d.connect(attempt)
		}
		if err == nil {
			err = readLog(attempt, conn, r, namespace, &last)
		}
		if err != nil && conn != nil {
			conn.close(attempt)
			conn = nil
		}
		cancel()
		if isLast {
			if conn != nil {
				conn.close(context.WithoutCancel(ctx))
			}
			return
		}
		select {
		case <-ctx.Done():
			isLast = true
		case <-time.After(followInterval):
		}
	}
}

// readLog records what is new and moves last.
func readLog(ctx context.Context, c *connection, r *history.Recorder, namespace string, last *int64) error {
	revision, compacted, err := c.counters(ctx)
	if err != nil || revision <= *last {
		return err
	}
	first := max(*last, compacted) + 1
	changes, err := c.changes(ctx, namespace, first-1, revision)
	if err != nil {
		return err
	}
	// A compaction between the two statements takes changes away.
	if _, now, err := c.counters(ctx); err != nil || now >= first {
		return err
	}
	r.AddChanges(first, revision, changes)
	*last = revision
	return nil
}
