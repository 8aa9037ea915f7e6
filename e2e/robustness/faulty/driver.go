package main

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"byre/e2e/robustness/vfs"
	"byre/sqlstore"
	"byre/sqlstore/sqlite"
)

// driver is SQLite's driver, except that it ends the process at a point.
type driver struct {
	*sqlite.Driver
	point  string
	after  int64
	passed atomic.Int64
}

// pass ends the process if this is the point, after a random time of at most within.
func (d *driver) pass(point string, within time.Duration) {
	if point != d.point || d.passed.Add(1) != d.after {
		return
	}
	if within == 0 {
		die()
	}
	time.AfterFunc(rand.N(within), die)
}

// die ends the process by kill -9, or by a power failure.
func die() { vfs.PowerFails() }

// during is about how long a transaction takes.
const during = 3 * time.Millisecond

// Commit implements sqlstore.Driver.
func (d *driver) Commit(ctx context.Context, batch []sqlstore.Write) ([]sqlstore.Outcome, error) {
	d.pass("before a transaction", 0)
	d.pass("during a transaction", during)
	outcomes, err := d.Driver.Commit(ctx, batch)
	d.pass("between COMMIT and publishing", 0)
	d.pass("between COMMIT and the answers", during)
	return outcomes, err
}

// DeleteHistory implements sqlstore.Driver.
func (d *driver) DeleteHistory(ctx context.Context, deletion sqlstore.Deletion) (int, time.Duration, error) {
	d.pass("before a compaction", 0)
	d.pass("during a compaction", during)
	deleted, waited, err := d.Driver.DeleteHistory(ctx, deletion)
	d.pass("after a compaction", 0)
	return deleted, waited, err
}
