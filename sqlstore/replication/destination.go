package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/superfly/ltx"
)

// destination is one place that the database is copied to.
type destination struct {
	// name is its URL, which has no secrets.
	name   string
	bucket folderStore
	logger *slog.Logger

	// mu guards the fields below.
	mu sync.Mutex
	// lastCommit is when the last commit was made. behind is when the first one was made that the
	// destination does not have, or later by the length of one capture; zero if it has all.
	lastCommit, behind time.Time
	lastSuccess        time.Time
	failures           int64
	err                error
	// confirmed is up to where the destination has all commits; zero if its folder does not have all of the database.
	// changed is closed, and replaced, when that changes.
	confirmed position
	changed   chan struct{}
}

// Status says how complete the copy at one destination is.
type Status struct {
	// Destination is its URL.
	Destination string
	// Lag is the age of the oldest commit that is not there; 0 if all are.
	Lag time.Duration
	// LastSuccess is when the destination last had all commits that were captured; zero if it never
	// had in this process.
	LastSuccess time.Time
	// Failures counts failed attempts, and those to capture the database. Err is the error of the last attempt; nil if
	// it succeeded.
	Failures int64
	Err      error
}

// Status returns the status of each destination.
func (r *Replicator) Status() []Status {
	all := make([]Status, len(r.destinations))
	for i, d := range r.destinations {
		all[i] = d.status(time.Now())
	}
	return all
}

func (d *destination) status(now time.Time) Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := Status{Destination: d.name, LastSuccess: d.lastSuccess, Failures: d.failures, Err: d.err}
	if !d.behind.IsZero() {
		s.Lag = now.Sub(d.behind)
	}
	return s
}

// markBehind notes a commit.
func (d *destination) markBehind(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lastCommit = now
	if d.behind.IsZero() {
		d.behind = now
	}
}

// position is how far the backlog, or the folder of a destination, reaches.
type position struct {
	// id is the last file. It and those before have all commits that were made until a time, and those up to a revision.
	id       ltx.TXID
	until    time.Time
	revision int64
}

// succeeded notes that the destination has all commits up to a position.
func (d *destination) succeeded(ctx context.Context, to position) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.behind = to.until
	if d.lastCommit.Before(to.until) {
		d.behind = time.Time{}
	}
	if d.err != nil {
		d.logger.InfoContext(ctx, "replication: the destination has everything again")
	}
	d.lastSuccess, d.err, d.confirmed = time.Now(), nil, to
	d.signalChanged()
}

// begins notes that a folder begins, from which a process may go on instead of the one before.
func (d *destination) begins() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.confirmed = position{}
}

// wake has await look again.
func (d *destination) wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.signalChanged()
}

func (d *destination) signalChanged() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// await waits until the destination has all commits until a time. It fails if ctx ends before, ended is closed, or hasNoSpace
// becomes true, after which wake is called.
func (d *destination) await(ctx context.Context, at time.Time, ended <-chan struct{}, hasNoSpace *atomic.Bool) error {
	for {
		d.mu.Lock()
		has, changed := !d.confirmed.until.Before(at), d.changed
		d.mu.Unlock()
		switch {
		case has:
			return nil
		case hasNoSpace.Load():
			return fmt.Errorf("nothing is copied: %w", errFull)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			return errors.New("the server stops before " + d.name + " has the commit")
		}
	}
}

// lost notes that the destination has lost what it had.
func (d *destination) lost(ctx context.Context, now time.Time, err error) {
	d.mu.Lock()
	if d.behind.IsZero() {
		d.behind = now
	}
	d.mu.Unlock()
	d.failed(ctx, err)
}

// failed notes a failed attempt.
func (d *destination) failed(ctx context.Context, err error) {
	if d.fail(err) {
		d.logger.ErrorContext(ctx, "replication: the copy is not complete, and is tried again: see whether the destination can be reached and written", "err", err)
	}
}

// fail counts a failed attempt, and reports whether the one before succeeded.
func (d *destination) fail(err error) (isFirst bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	isFirst = d.err == nil
	d.failures++
	d.err = err
	return isFirst
}
