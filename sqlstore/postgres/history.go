package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"byre/migrations/dbserver"
	"byre/sqlstore"
)

// epochGap is how far a new epoch moves the revision beyond the last one that this process
// has seen. Other processes may have seen later revisions and shown them to clients; the gap
// keeps the new epoch from giving them again.
const epochGap = 1_000_000

// errLost means that the database does not hold the last change that this process has seen:
// a standby that had not received it was promoted, or an older state was restored.
var errLost = errors.New("the database has lost commits")

// position identifies the last change that this process has seen: by its revision, and by
// the time and UID in its row, because after a failover the revision may have been given to
// another change.
type position struct {
	epoch    string
	revision int64
	time     time.Time // zero if this process has not seen the row
	uid      string
}

// history holds the position of this process.
//
// Invariant: the position only moves forward within an epoch, and a read returns only what
// comes from a snapshot that holds the position of before the read. advance and check keep
// it. Otherwise a read could be older than an earlier read of this process, or show changes
// that a failover has replaced.
type history struct {
	mu       sync.Mutex
	position position
	// recovering is held by startEpoch.
	recovering sync.Mutex
}

// last returns the position.
func (h *history) last() position {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.position
}

// advance moves the position forward to now, which a read or a commit saw. before is the
// position of before that read or commit. If another one has changed the epoch meanwhile,
// advance does nothing.
func (h *history) advance(before, now position) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.position.epoch == before.epoch && (now.epoch != before.epoch || now.revision > h.position.revision) {
		h.position = now
	}
}

// forget removes the position, so that the next read sets it, unless the epoch is not that
// of before any more.
func (h *history) forget(before position) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.position.epoch == before.epoch {
		h.position = position{}
	}
}

// observation is what one snapshot shows of the store: the row of stateColumns.
type observation struct {
	sqlstore.State
	// lastTime and lastUID are those of the row of the last revision; nil if the row is
	// compacted.
	lastTime *time.Time
	lastUID  *string
	// knownTime and knownUID are those of the row that has the position's revision; nil if
	// there is none.
	knownTime         *time.Time
	knownUID          *string
	standby, readOnly bool
}

// columns returns the destinations of a Scan of stateColumns.
func (o *observation) columns() []any {
	return []any{
		&o.Revision, &o.Compacted, &o.Epoch, &o.Time, &o.lastTime, &o.lastUID,
		&o.knownTime, &o.knownUID, &o.standby, &o.readOnly,
	}
}

// position returns the position of the last change in the snapshot.
func (o *observation) position() position {
	p := position{epoch: o.Epoch, revision: o.Revision}
	if o.lastTime != nil {
		p.time, p.uid = *o.lastTime, *o.lastUID
	}
	return p
}

// holds reports whether the snapshot holds the position p. It returns true if the change of
// p is compacted, because the snapshot does not show it then; reads that continue from p
// fail with sqlstore.ErrCompacted in that case.
func (o *observation) holds(p position) bool {
	switch {
	case o.Revision < p.revision:
		return false
	case p.revision <= o.Compacted || p.time.IsZero():
		return true
	}
	return o.knownTime != nil && o.knownTime.Equal(p.time) && *o.knownUID == p.uid
}

// check fails if a snapshot was not read from a primary, or if it does not hold the position
// of before the read (errLost). Otherwise it advances the position. Every function that
// reads calls it before it returns what it has read.
func (d *Driver) check(before position, o *observation) error {
	switch {
	case o.standby || o.readOnly:
		return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, dbserver.Explain(d.config, pgconn.ErrReadOnlyConnection))
	case !o.holds(before):
		return errLost
	}
	d.history.advance(before, o.position())
	return nil
}

// startEpoch begins a new epoch after lost commits. It moves the revision beyond all that
// were given before, marks all before it as compacted, and changes the epoch. So every watch
// and every list that continues from a revision of the lost history, in this process or in a
// client, fails as compacted, and no revision is given twice.
func (d *Driver) startEpoch(ctx context.Context, before position) error {
	d.history.recovering.Lock()
	defer d.history.recovering.Unlock()
	if d.history.last().epoch != before.epoch {
		return nil // another read of this process has begun the epoch
	}
	d.reset() // connections may lead to different servers
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.options.LockTimeout+d.options.CommitTimeout)
	defer cancel()
	conn, err := d.acquireWriter(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	lineage, err := d.lineage(ctx, conn)
	if err != nil {
		return d.translate(err)
	}
	revision, err := d.changeEpoch(ctx, conn, newEpoch, before.revision, knownTime(before), before.uid, epochGap, lineage)
	if err != nil {
		return err
	}
	if revision == 0 {
		// Either another process has begun the epoch, and the next read sees it. Or the
		// read that failed went to another server, and this server has lost nothing.
		return nil
	}
	d.history.forget(before)
	d.options.Logger.Error("postgres: the database has lost commits that were acknowledged: a failover to a standby that "+
		"was behind, or a restore; a new epoch begins: caches are dropped and watches end with 410",
		"server", dbserver.Address(d.config), "lost", before.revision, "time", before.time, "epoch", before.epoch, "revision", revision)
	return nil
}

// knownTime returns the time of a position as a parameter of a statement; empty if it is not
// known.
func knownTime(p position) string {
	if p.time.IsZero() {
		return ""
	}
	return formatTime(p.time)
}
