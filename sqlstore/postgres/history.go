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

// epochGap is how far a new epoch moves the revision beyond the last one that this
// process has seen. Other processes may have seen later revisions, and shown them to
// clients.
const epochGap = 1_000_000

// errLost means that the database does not hold the last change that this process has
// seen: a server took over that had not received it.
var errLost = errors.New("the database has lost commits")

// position is the last change that this process has seen, by its revision and
// by what its row holds: after a failover the same revision may have been given
// to another change.
type position struct {
	epoch    string
	revision int64
	time     time.Time // zero where the row was not seen
	uid      string
}

// history keeps the position. Invariant: it only moves forward within an epoch,
// and what is read is returned only if its snapshot holds the position from
// before the read. So no read is older than what this process has returned
// before, and none comes from another history.
type history struct {
	mu       sync.Mutex
	position position
	// recovering is held while a new epoch is started.
	recovering sync.Mutex
}

// last is the position now.
func (h *history) last() position {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.position
}

// advance moves the position from what it was before a read or commit to what
// that saw, unless the epoch has changed meanwhile.
func (h *history) advance(before, now position) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.position.epoch == before.epoch && (now.epoch != before.epoch || now.revision > h.position.revision) {
		h.position = now
	}
}

// forget lets the next read set the position.
func (h *history) forget(before position) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.position.epoch == before.epoch {
		h.position = position{}
	}
}

// observation is what one snapshot says of the store, in the order of
// stateColumns.
type observation struct {
	sqlstore.State
	// lastTime and lastUID are of the last revision's row, nil where it is compacted.
	lastTime *time.Time
	lastUID  *string
	// knownTime and knownUID are of the row that has the position's revision.
	knownTime         *time.Time
	knownUID          *string
	standby, readOnly bool
}

func (o *observation) columns() []any {
	return []any{
		&o.Revision, &o.Compacted, &o.Epoch, &o.Time, &o.lastTime, &o.lastUID,
		&o.knownTime, &o.knownUID, &o.standby, &o.readOnly,
	}
}

// position is the observation's own.
func (o *observation) position() position {
	p := position{epoch: o.Epoch, revision: o.Revision}
	if o.lastTime != nil {
		p.time, p.uid = *o.lastTime, *o.lastUID
	}
	return p
}

// holds reports whether a snapshot holds the position. If the position is compacted, the
// snapshot does not tell. Reads that continue from the position then fail with
// sqlstore.ErrCompacted.
func (o *observation) holds(p position) bool {
	switch {
	case o.Revision < p.revision:
		return false
	case p.revision <= o.Compacted || p.time.IsZero():
		return true
	}
	return o.knownTime != nil && o.knownTime.Equal(p.time) && *o.knownUID == p.uid
}

// check refuses what was read from anything but the primary, or from a history
// that does not hold what this process saw before.
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

// startEpoch answers lost commits: it moves the revision beyond every one that was given
// before, marks all before it as compacted, and changes the epoch. So every cursor of the
// lost history, in this process or in a client, fails as compacted, and no revision is
// given twice.
func (d *Driver) startEpoch(ctx context.Context, before position) error {
	d.history.recovering.Lock()
	defer d.history.recovering.Unlock()
	if d.history.last().epoch != before.epoch {
		return nil // somebody else has
	}
	d.reset() // connections may lead to different servers
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.options.LockTimeout+d.options.CommitTimeout)
	defer cancel()
	conn, err := d.writer(ctx)
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
		// Either another process has started the epoch, which the next read finds, or the
		// first read went to another server, and this one has lost nothing.
		return nil
	}
	d.history.forget(before)
	d.options.Logger.Error("postgres: the database has lost commits that were acknowledged: a failover to a standby that "+
		"was behind, or a restore; a new epoch begins: caches are dropped and watches end with 410",
		"server", dbserver.Address(d.config), "lost", before.revision, "time", before.time, "epoch", before.epoch, "revision", revision)
	return nil
}

// knownTime is a position's time as a parameter, empty where it is not known.
func knownTime(p position) string {
	if p.time.IsZero() {
		return ""
	}
	return formatTime(p.time)
}
