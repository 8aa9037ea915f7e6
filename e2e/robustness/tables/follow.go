package tables

import (
	"context"
	"time"

	"byre/e2e/robustness/history"
)

// followInterval is the time between two readings of the log. It is much shorter than the
// time after which byre compacts a change in these tests.
const followInterval = 50 * time.Millisecond

// Follow records the database's log after a revision until ctx ends, and then up to the
// revision that it is at. While the database is away it tries again.
func Follow(
	ctx context.Context, connect func(context.Context) (*Connection, error), r *history.Recorder, namespace string,
	after int64,
) {
	var conn *Connection
	last := after
	for isLast := false; ; {
		attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		var err error
		if conn == nil {
			conn, err = connect(attempt)
		}
		if err == nil {
			err = readLog(attempt, conn, r, namespace, &last)
		}
		// A file of SQLite stays closed between two readings: a power failure waits until
		// this process does not have it open (byre/e2e/robustness/vfs.PowerFails).
		if conn != nil && (err != nil || conn.sqlite != nil) {
			conn.Close(attempt)
			conn = nil
		}
		cancel()
		if isLast {
			if conn != nil {
				conn.Close(context.WithoutCancel(ctx))
			}
			return
		}
		select {
		case <-ctx.Done():
			isLast = true // what was committed since is read once more
		case <-time.After(followInterval):
		}
	}
}

// readLog records what is new and moves last.
func readLog(ctx context.Context, c *Connection, r *history.Recorder, namespace string, last *int64) error {
	revision, compacted, err := c.Counters(ctx)
	if err != nil || revision <= *last {
		return err
	}
	first := max(*last, compacted) + 1
	changes, err := c.Changes(ctx, namespace, first-1, revision)
	if err != nil {
		return err
	}
	// A compaction between the two statements takes changes away.
	if _, now, err := c.Counters(ctx); err != nil || now >= first {
		return err
	}
	r.AddChanges(first, revision, changes)
	*last = revision
	return nil
}
