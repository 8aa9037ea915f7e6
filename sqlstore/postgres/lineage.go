package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"byre/migrations"
	"byre/sqlstore"
)

// errNotHeld means that a statement met an instance that this process does not follow, or one
// that does not hold the last change that this process has seen. The statement has written
// nothing and shown nothing.
var errNotHeld = errors.New("the database is not the one that this process follows")

// errLost means that the database has lost commits, or may have, and is in a new epoch since.
var errLost = errors.New("the database has lost commits")

// lastSeen is what a process knows of the history of the store: the instance that it
// follows, and the last change that it has seen, by its revision, and by the time and UID in its
// row, because after a loss the revision may have been given to another change.
type lastSeen struct {
	// instance identifies an epoch, and the running server and table that it is on; see the
	// column. It is empty until followInstance has set it.
	instance string
	revision int64
	time     time.Time // zero if this process has not seen the row
	uid      string
}

// lineage holds the last change that this process has seen.
//
// Invariant: a read returns only what comes from a snapshot that holds the change that was last seen before
// the read, and a batch writes only to a store that holds it; on one instance the last seen change
// only moves forward. check, applyBatch and followInstance keep it: every statement looks for it in its own
// snapshot, because a pooler connects to another server unseen. Otherwise a read could be older
// than an earlier one, or show changes that a failover has replaced, and a batch could give
// revisions again that another process had acknowledged before it ended with its server.
type lineage struct {
	mu   sync.Mutex
	seen lastSeen
	// following has an element while followInstance runs: a mutex whose callers wait no longer than their
	// contexts last.
	following chan struct{}
}

// last returns the last seen change.
func (l *lineage) last() lastSeen {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen
}

// advance moves the last seen change forward to now, which a read or a commit saw. before is the
// one that was last seen before that read or commit. If followInstance has replaced it meanwhile, advance does
// nothing.
func (l *lineage) advance(before, now lastSeen) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen.instance == before.instance && now.revision > l.seen.revision {
		l.seen = now
	}
}

// replace sets the last seen change to now, unless it is not before any more.
func (l *lineage) replace(before, now lastSeen) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == before {
		l.seen = now
	}
}

// observation is what one snapshot shows of the store: the row of selectState.
type observation struct {
	sqlstore.State
	// lastTime and lastUID are those of the row of the last revision; nil if the row is
	// compacted.
	lastTime *time.Time
	lastUID  *string
	// knownTime and knownUID are those of the row that has the revision of the last seen change; nil if
	// there is none.
	knownTime         *time.Time
	knownUID          *string
	standby, readOnly bool
	instance          string
}

// columns returns the destinations of a Scan of selectState.
func (o *observation) columns() []any {
	return []any{
		&o.Revision, &o.Compacted, &o.Epoch, &o.Time, &o.lastTime, &o.lastUID,
		&o.knownTime, &o.knownUID, &o.standby, &o.readOnly, &o.instance,
	}
}

// lastSeen returns what to know of the last change in the snapshot.
func (o *observation) lastSeen() lastSeen {
	p := lastSeen{instance: o.instance, revision: o.Revision}
	if o.lastTime != nil {
		p.time, p.uid = *o.lastTime, *o.lastUID
	}
	return p
}

// holds reports whether the snapshot holds the last change of p. It returns true if that change
// is compacted, because the snapshot does not show it then; followInstance then marks the changes of
// every resource up to it as compacted.
func (o *observation) holds(p lastSeen) bool {
	switch {
	case o.Revision < p.revision:
		return false
	case p.revision <= o.Compacted || p.time.IsZero():
		return true
	}
	return o.shows(p)
}

// shows reports whether the snapshot has the last change of p.
func (o *observation) shows(p lastSeen) bool {
	return o.knownTime != nil && o.knownTime.Equal(p.time) && *o.knownUID == p.uid
}

// check fails if a snapshot was not read from a primary, or if it does not hold the change
// that was last seen before the read (errNotHeld). Otherwise it advances the last seen change. Every function that
// reads calls it before it returns what it has read.
func (d *Driver) check(before lastSeen, o *observation) error {
	switch {
	case o.standby || o.readOnly:
		return d.server.notPrimary()
	case before.instance != "" && o.instance != before.instance, !o.holds(before):
		return errNotHeld
	}
	d.lineage.advance(before, o.lastSeen())
	return nil
}

func (s *server) notPrimary() error {
	return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, migrations.Explain(s.config, pgconn.ErrReadOnlyConnection))
}

// followInstance makes the instance that a new connection leads to the one that this process follows. It
// begins a new epoch unless it is certain that the server has every commit that any process has
// acknowledged: then it fails with errLost, except in a process that starts. before is the
// last seen change that the caller has failed with; the zero value for a process that starts.
//
// The new epoch begins beyond all revisions that were given before, and all before it is marked
// as compacted. So every watch and every list that continues from a revision of the lost history,
// in any process or client, fails as compacted, and no revision is given twice.
func (d *Driver) followInstance(ctx context.Context, before lastSeen) error {
	select {
	case d.lineage.following <- struct{}{}:
		defer func() { <-d.lineage.following }()
	case <-ctx.Done():
		return d.server.translate(ctx.Err())
	}
	isStart := before == lastSeen{}
	now := d.lineage.last()
	if now.instance != before.instance {
		return nil // another caller has followed the instance
	}
	before = now
	if !isStart {
		d.server.reset() // connections may lead to different servers
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx),
		d.server.options.LockTimeout+d.server.options.CommitTimeout)
	defer cancel()
	conn, err := d.server.acquireWriter(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var begun bool
	var o observation
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		f, err := d.find(ctx, tx, before)
		if err == nil && (f.stored != f.present || !f.holds) {
			begun, err = d.record(ctx, tx, before)
		}
		if err == nil && before.revision > 0 && !f.isShown {
			_, err = tx.Exec(ctx, compactAll) // what this process has seen may be lost
		}
		if err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, selectState, before.revision).Scan(o.columns()...); err != nil || begun {
			return err
		}
		_, err = tx.Exec(ctx, commitLocally)
		return err
	})
	if err != nil {
		return d.server.translate(err)
	}
	d.known.Clear() // a lost commit may have given an id
	d.lineage.replace(before, o.lastSeen())
	if begun && !isStart {
		return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, errLost)
	}
	return nil
}

// record stores the lineage of the server in the store, under the writers' lock, and begins a new
// epoch where that is needed.
func (d *Driver) record(ctx context.Context, tx pgx.Tx, before lastSeen) (begun bool, err error) {
	if _, err := tx.Exec(ctx, configure, milliseconds(d.server.options.LockTimeout), true); err != nil {
		return false, err
	}
	if _, err := tx.Exec(ctx, lockAny, milliseconds(d.server.options.CommitTimeout/2)); err != nil {
		return false, err
	}
	f, err := d.find(ctx, tx, before) // another process may have done it meanwhile
	if err != nil || f.stored == f.present && f.holds {
		return false, err
	}
	log, server, lineage := d.server.options.Logger, migrations.Address(d.server.config), f.present.String()
	if begun = !f.isSafe(); !begun {
		if f.stored != (origin{}) && !f.isSame() {
			log.Info(
				"postgres: a standby took over; every commit waited for a synchronous standby, so that none is lost, and the epoch goes on",
				"server", server)
		}
		_, err = tx.Exec(ctx, storeLineage, lineage)
	} else {
		revision := sqlstore.NextEpoch(max(f.last, before.revision))
		if _, err = tx.Exec(ctx, beginEpoch, revision, lineage); err == nil {
			_, err = tx.Exec(ctx, compactAll)
		}
		if !f.holds {
			log.Error(
				"postgres: the database has lost commits that were acknowledged: a failover to a standby that was behind, "+
					"or a restore; a new epoch begins: caches are dropped and watches end with 410",
				"server", server, "lost", before.revision, "time", before.time, "revision", revision)
		} else {
			log.Warn(
				"postgres: the database is not the one that the epoch began on: an asynchronous standby took over, or the database "+
					"was restored or moved, and commits may be lost; a new epoch begins: caches are dropped and watches end with 410",
				"server", server, "was", f.stored, "is", f.present, "revision", revision)
		}
	}
	if err == nil {
		_, err = tx.Exec(ctx, unlimited)
	}
	return begun, err
}

// finding is what decides whether a new epoch begins.
type finding struct {
	// holds is true if the store holds the last change that this process has seen; last is
	// its last revision.
	holds bool
	last  int64
	// isShown is true if the store has the row of that change. If it has not, and holds is true,
	// the change is compacted.
	isShown bool
	// stored is the origin in the store; the zero origin if no process has served it yet.
	stored, present origin
	// streamed is true if the server has received its log by streaming replication since it was
	// started: it was a standby, and not recovered from an archive.
	streamed bool
}

// origin says where a store is, and how it came there.
type origin struct {
	// server is the system identifier of the server's data. A standby that is promoted begins
	// a timeline, and so does a recovery to a point in time. Both are empty if no process that
	// served the store could read them.
	server, timeline string
	// place has the identifiers of the database and the table. A dump that is restored makes a
	// table of its own.
	place string
	// synchronous is true if all commits since the origin was stored have waited for a
	// synchronous standby.
	synchronous bool
}

// position returns the server and the timeline as a connection finds them.
func (o origin) position() migrations.Timeline {
	number, _ := strconv.ParseInt(o.timeline, 10, 64)
	return migrations.Timeline{System: o.server, Number: number}
}

const synchronousMark = " synchronous"

// String returns the origin as it is stored.
func (o origin) String() string {
	text := o.server + "/" + o.timeline + "/" + o.place
	if o.synchronous {
		text += synchronousMark
	}
	return text
}

func parseOrigin(text string) (o origin) {
	text, o.synchronous = strings.CutSuffix(text, synchronousMark)
	o.server, text, _ = strings.Cut(text, "/")
	o.timeline, o.place, _ = strings.Cut(text, "/")
	return o
}

// find reads what decides whether a new epoch begins.
func (d *Driver) find(ctx context.Context, tx pgx.Tx, before lastSeen) (f finding, err error) {
	var o observation
	if err := tx.QueryRow(ctx, selectState, before.revision).Scan(o.columns()...); err != nil {
		return f, err
	}
	if o.standby || o.readOnly {
		return f, d.server.notPrimary()
	}
	f, refused, err := findOrigin(ctx, tx)
	if refused != nil {
		d.server.options.Logger.Warn(
			"postgres: the server does not tell its timeline: a failover that loses commits is noticed only by "+
				"processes that have seen them", "server", migrations.Address(d.server.config), "error", refused.Message)
	}
	f.holds, f.isShown, f.last = o.holds(before), o.shows(before), o.Revision
	if err == nil && refused == nil {
		// A pooler may lead an existing connection to another primary.
		if err = d.server.primaries.Check(tx.Conn().PgConn().Conn().RemoteAddr().String(), f.present.position()); err != nil {
			d.server.reset()
		}
	}
	return f, err
}

// findOrigin reads where the store was and is. If refused is not nil, the role may not read the
// timeline, or the server does not tell it, and it counts as the one that is stored. Any other error
// may pass: it must not hide that the store is another one.
func findOrigin(ctx context.Context, tx pgx.Tx) (f finding, refused *pgconn.PgError, err error) {
	var stored string
	if err := tx.QueryRow(ctx, selectOrigin).Scan(&stored, &f.present.place, &f.present.synchronous,
		&f.streamed); err != nil {
		return f, nil, err
	}
	f.stored = parseOrigin(stored)
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { // a savepoint
		return tx.QueryRow(ctx, migrations.SelectTimeline).Scan(&f.present.server, &f.present.timeline)
	})
	if errors.As(err, &refused) && slices.Contains(refusals, refused.Code) {
		f.present.server, f.present.timeline = f.stored.server, f.stored.timeline
		return f, refused, nil
	}
	return f, nil, err
}

// isSame reports whether the store is where it was.
func (f *finding) isSame() bool {
	was, is := f.stored, f.present
	return was.place == is.place && (was.server == "" || was.server == is.server && was.timeline == is.timeline)
}

// isSafe reports whether no acknowledged commit can be missing: the store is new, or where it was,
// or on a standby that took over from a server whose commits all waited for a synchronous
// standby. That it is the synchronous one that took over is up to whoever promotes it.
func (f *finding) isSafe() bool {
	was, is := f.stored, f.present
	return f.holds &&
		(was == origin{} || f.isSame() || was.synchronous && f.streamed && was.server == is.server && was.place == is.place)
}

// knownTime returns the time of a last seen change as a parameter of a statement; empty if it is not
// known.
func knownTime(p lastSeen) string {
	if p.time.IsZero() {
		return ""
	}
	return formatTime(p.time)
}
