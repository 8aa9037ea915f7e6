package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"byre/migrations"
	"byre/sqlstore"
)

// ReadOnly implements sqlstore.Driver for a process that writes nothing. It reads from a hot standby, and
// has one connection to the primary.
//
// Invariant: a read is as fresh as one of a Driver. State asks the primary; the last revision that it has seen
// is the read index (Raft, 6.4). What the standby answers holds that revision: a read waits for
// the replay, and asks the primary instead if the standby is more than replayTimeout behind, is gone, or is not a
// standby of the primary any more. Get, RevisionAt and a List of what is current call State first. The others
// show at least what State has returned before: the feed, and who reads history, have called it. No read shows a
// change before the primary does.
//
// A ReadOnly takes no lock, and the processes that write do not know of it. So it gets no notification from
// them: Listen looks at the standby.
type ReadOnly struct {
	primary, standby *Driver
	// isAway is true while the standby can't answer. Maintain sets it to false.
	isAway atomic.Bool
	// primaryReads counts the reads that the primary was asked for in place of the standby.
	primaryReads prometheus.Counter
}

var (
	_ sqlstore.Driver   = (*ReadOnly)(nil)
	_ sqlstore.Listener = (*ReadOnly)(nil)
)

// OpenReadOnly connects to a primary and a hot standby of it. The connection strings are those of Open. It
// fails if no process that writes has served the database as it is.
func OpenReadOnly(ctx context.Context, primary, standby string, options Options) (*ReadOnly, error) {
	options.readsOnly = true
	p, err := Open(ctx, primary, options)
	if err != nil {
		return nil, err
	}
	r := &ReadOnly{primary: p}
	if r.standby, err = openStandby(ctx, standby, p); err != nil {
		return nil, errors.Join(fmt.Errorf("standby: %w", err), p.Close())
	}
	metrics := promauto.With(options.Registerer)
	r.primaryReads = metrics.NewCounter(prometheus.CounterOpts{
		Name: "byre_read_only_primary_reads_total",
		Help: "Reads that the primary was asked for in place of the standby.",
	})
	r.standby.replayWaits = metrics.NewHistogram(prometheus.HistogramOpts{
		Name:    "byre_read_only_replay_wait_seconds",
		Help:    "For how long reads waited until the standby had replayed what the primary had.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 12),
	})
	if _, err = r.standby.State(ctx); err != nil {
		r.leaveStandby(err)
	}
	return r, nil
}

// Close implements sqlstore.Driver.
func (r *ReadOnly) Close() error { return errors.Join(r.standby.Close(), r.primary.Close()) }

var (
	// errNotRecorded means that a ReadOnly must not follow a database, because a process that writes may still
	// begin a new epoch there.
	errNotRecorded = fmt.Errorf("%w: the database is not the one that its epoch began on, or was never served: "+
		"start a server that writes", sqlstore.ErrUnavailable)
	// errReplaced means that a ReadOnly must not follow a database, because revisions that its callers have seen
	// are given there again.
	errReplaced = fmt.Errorf("%w: the database was replaced by one that lacks changes which this server has seen: "+
		"start this server again", sqlstore.ErrUnavailable)
)

// checkRecorded fails unless a ReadOnly may follow the store that was found: a process that writes has served it as
// it is, and this program knows its schema. The schema may be another one, because no lock of a ReadOnly keeps
// migrations from the store. It logs why not, unless it has failed for the same reason before.
func (d *Driver) checkRecorded(ctx context.Context, tx pgx.Tx, f finding) error {
	schema, err := migrations.PostgresSchema(ctx, tx.Conn())
	switch {
	case err != nil:
		return err
	case !f.isSame():
		err = errNotRecorded
	case !f.holds:
		err = errReplaced
	default:
		err = migrations.Check(migrations.Postgres, schema)
	}
	if result := fmt.Sprint(err); result != d.lineage.checked {
		if d.lineage.checked = result; err != nil {
			d.server.options.Logger.Warn("postgres: this server does not follow the database", "error", err)
		}
	}
	return err
}

// read calls f with the standby, or with the primary if the standby can't answer.
func (r *ReadOnly) read(ctx context.Context, f func(*Driver) error) error {
	if !r.isAway.Load() {
		err := f(r.standby)
		switch {
		case err == nil || ctx.Err() != nil || errors.Is(err, errBusy) || errors.Is(err, errStatementWaits):
			return err
		case hasCode(err, codeSerialization):
			// The replay has cancelled the statement: https://www.postgresql.org/docs/current/hot-standby.html#HOT-STANDBY-CONFLICT
		case errors.Is(err, errNotHeld), errors.Is(err, sqlstore.ErrUnavailable):
			r.leaveStandby(err)
		default:
			return err
		}
	}
	r.primaryReads.Inc()
	return f(r.primary)
}

func (r *ReadOnly) leaveStandby(err error) {
	if errors.Is(err, errNotHeld) {
		err = fmt.Errorf("for %s it did not show what the primary does: it is behind, or a COMMIT waits for a synchronous standby", replayTimeout)
	}
	if r.isAway.CompareAndSwap(false, true) {
		r.primary.server.options.Logger.Warn("postgres: the standby can't be read: reads take turns on one connection to the primary",
			"standby", migrations.Address(r.standby.server.config), "error", err)
	}
}

// awayPause is the time between two tries to read from a standby that could not answer.
const awayPause = time.Second

// Maintain implements sqlstore.Driver: it returns to a standby that can answer again.
func (r *ReadOnly) Maintain(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(awayPause):
		}
		if !r.isAway.Load() {
			continue
		}
		if _, err := r.standby.State(ctx); err == nil || errors.Is(err, errBusy) { // of the connection to the primary
			r.isAway.Store(false)
			r.primary.server.options.Logger.Info("postgres: the standby is read again", "standby", migrations.Address(r.standby.server.config))
		}
	}
}

// hintPause is the time between two looks at the last revision of the standby. A change of another process
// is late by half of it on average.
const hintPause = 20 * time.Millisecond

// Listen implements sqlstore.Listener: it calls f with the last revision of the standby when it has changed and the
// primary shows it. While the standby is away it calls nothing.
func (r *ReadOnly) Listen(ctx context.Context, f func(revision int64)) error {
	for last := int64(0); ; {
		if !r.isAway.Load() {
			state, err := r.standby.State(ctx)
			switch {
			case errors.Is(err, errBusy):
			case err != nil && ctx.Err() == nil:
				r.leaveStandby(err)
			case state.Revision != last:
				last = state.Revision
				f(last)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(hintPause):
		}
	}
}

// State implements sqlstore.Driver.
func (r *ReadOnly) State(ctx context.Context) (sqlstore.State, error) { return r.primary.State(ctx) }

// Get implements sqlstore.Driver.
func (r *ReadOnly) Get(ctx context.Context, key sqlstore.Key) (record sqlstore.Record, revision int64, err error) {
	if _, err := r.State(ctx); err != nil {
		return record, 0, err
	}
	err = r.read(ctx, func(d *Driver) (err error) {
		record, revision, err = d.Get(ctx, key)
		return err
	})
	return record, revision, err
}

// List implements sqlstore.Driver. If the standby ends a list of which yield has got records, the primary lists at
// the same revision, and yield gets those that are left.
func (r *ReadOnly) List(ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error) (
	listed sqlstore.ListResult, err error,
) {
	if q.At == 0 || q.At > r.primary.lineage.last().revision {
		if _, err := r.State(ctx); err != nil {
			return listed, err
		}
	}
	yielded, isPast := 0, q.At != 0
	var refused error // by yield
	err = r.read(ctx, func(d *Driver) (err error) {
		skip := yielded
		listed, err = d.List(ctx, q, func(record sqlstore.Record) error {
			if skip > 0 {
				skip--
				return nil
			}
			yielded++
			refused = yield(record)
			return refused
		})
		switch {
		case refused != nil:
			return nil
		case yielded > 0:
			q.At = listed.Revision
		}
		return err
	})
	switch {
	case refused != nil:
		err = refused
	case !isPast && errors.Is(err, sqlstore.ErrCompacted):
		err = fmt.Errorf("%w: what the standby had listed in part is compacted", sqlstore.ErrUnavailable)
	}
	return listed, err
}

// ask is read for a method that returns one value.
func ask[T any](ctx context.Context, r *ReadOnly, f func(*Driver) (T, error)) (answer T, err error) {
	err = r.read(ctx, func(d *Driver) (err error) {
		answer, err = f(d)
		return err
	})
	return answer, err
}

// Changes implements sqlstore.Driver.
func (r *ReadOnly) Changes(ctx context.Context, q sqlstore.ChangesQuery) ([]sqlstore.Change, error) {
	return ask(ctx, r, func(d *Driver) ([]sqlstore.Change, error) { return d.Changes(ctx, q) })
}

// Histories implements sqlstore.Driver.
func (r *ReadOnly) Histories(ctx context.Context) ([]sqlstore.History, error) {
	return ask(ctx, r, func(d *Driver) ([]sqlstore.History, error) { return d.Histories(ctx) })
}

// Compacted implements sqlstore.Driver.
func (r *ReadOnly) Compacted(ctx context.Context, of sqlstore.Resource) (int64, error) {
	return ask(ctx, r, func(d *Driver) (int64, error) { return d.Compacted(ctx, of) })
}

// RevisionAt implements sqlstore.Driver.
func (r *ReadOnly) RevisionAt(ctx context.Context, moment time.Time) (int64, error) {
	if _, err := r.State(ctx); err != nil {
		return 0, err
	}
	return ask(ctx, r, func(d *Driver) (int64, error) { return d.RevisionAt(ctx, moment) })
}

// Usage implements sqlstore.Driver.
func (r *ReadOnly) Usage(ctx context.Context) (sqlstore.Usage, error) {
	return ask(ctx, r, func(d *Driver) (sqlstore.Usage, error) { return d.Usage(ctx) })
}

// Size implements sqlstore.Driver. It is the size on the standby.
func (r *ReadOnly) Size(ctx context.Context) (int64, error) {
	return ask(ctx, r, func(d *Driver) (int64, error) { return d.Size(ctx) })
}

// Used implements sqlstore.Driver.
func (r *ReadOnly) Used(ctx context.Context) (int64, error) { return r.Size(ctx) }

// LastBackup implements sqlstore.Driver.
func (r *ReadOnly) LastBackup(ctx context.Context) (sqlstore.LastBackup, error) {
	record, _, err := r.Get(ctx, sqlstore.LastBackupKey)
	if err != nil {
		return sqlstore.LastBackup{}, fmt.Errorf("last backup: %w", err)
	}
	return sqlstore.DecodeLastBackup(record.Value)
}

// errReadsOnly is the error of the methods that write, and of those that only the deletion of history and
// of expired objects calls.
var errReadsOnly = fmt.Errorf("%w: this process only reads", sqlstore.ErrReadOnly)

// Commit implements sqlstore.Driver: it fails.
func (*ReadOnly) Commit(context.Context, []sqlstore.Write) ([]sqlstore.Outcome, error) {
	return nil, errReadsOnly
}

// CountChanges implements sqlstore.Driver: it fails.
func (*ReadOnly) CountChanges(context.Context, sqlstore.Resource, int64, int64) (count, oldest int64, err error) {
	return 0, 0, errReadsOnly
}

// DeleteHistory implements sqlstore.Driver: it fails.
func (*ReadOnly) DeleteHistory(context.Context, sqlstore.Deletion) (deleted int, waited time.Duration, err error) {
	return 0, 0, errReadsOnly
}

// SetRetainedFor implements sqlstore.Driver: it fails.
func (*ReadOnly) SetRetainedFor(context.Context, map[sqlstore.Resource]time.Duration) error {
	return errReadsOnly
}

// Expired implements sqlstore.Driver: it fails.
func (*ReadOnly) Expired(context.Context, time.Time, int) ([]sqlstore.Record, error) {
	return nil, errReadsOnly
}

const (
	// replayTimeout is how long a read waits until the standby has replayed the last seen change, and for
	// each answer of the standby.
	replayTimeout = 2 * time.Second
	// firstReplayPause and longestReplayPause are the times between two looks at what it has replayed.
	firstReplayPause   = time.Millisecond
	longestReplayPause = 10 * time.Millisecond
)

// selectPlace identifies a session, and the database and the table that it reads. selectSystem
// identifies the server's data; its standbys have the same.
const (
	selectPlace = `
SELECT pg_backend_pid(), concat_ws('/', (SELECT oid FROM pg_database WHERE datname = current_database()), s.tableoid)
FROM store s WHERE s.id = 1`
	selectSystem = `SELECT system_identifier::text FROM pg_control_system()`
)

// openStandby opens the driver of a hot standby of primary, which shares primary's lineage. Its reads
// fail with errNotHeld while the standby has not replayed the last seen change, or is ahead of primary.
func openStandby(ctx context.Context, dsn string, primary *Driver) (*Driver, error) {
	config, err := parsePool(dsn)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsStandby
	pooled, err := inspectStandby(ctx, config.ConnConfig, primary)
	if err != nil {
		return nil, err
	}
	options := primary.server.options
	options.readsOnly, options.ReadTimeout = false, min(options.ReadTimeout, replayTimeout)
	d, err := newDriver(ctx, config, pooled, options, primary.lineage)
	if err == nil {
		d.primary = primary
	}
	return d, err
}

// inspectStandby fails unless a server is a standby of primary, and has its database.
func inspectStandby(ctx context.Context, config *pgx.ConnConfig, primary *Driver) (pooled bool, err error) {
	config = config.Copy()
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false, fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, migrations.Explain(config, err))
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	if _, err := migrations.HasSchema(ctx, conn); err != nil {
		return false, err
	}
	pid, place, system, err := placeOf(ctx, conn)
	if err != nil {
		return false, migrations.Explain(config, err)
	}
	used, err := primary.server.reads.Acquire(ctx)
	if err != nil {
		return false, primary.server.translate(err)
	}
	defer used.Release()
	_, primaryPlace, primarySystem, err := placeOf(ctx, used.Conn())
	switch {
	case err != nil:
		return false, primary.server.translate(err)
	case place != primaryPlace || system != primarySystem && system != "" && primarySystem != "":
		return false, fmt.Errorf("PostgreSQL at %s has another database than the one at %s: it is no standby of that",
			migrations.Address(config), migrations.Address(primary.server.config))
	}
	return pid != conn.PgConn().PID(), nil
}

// placeOf reads selectPlace and selectSystem. system is empty if the role may not know it.
func placeOf(ctx context.Context, conn *pgx.Conn) (pid uint32, place, system string, err error) {
	if err = conn.QueryRow(ctx, selectPlace).Scan(&pid, &place); err != nil {
		return 0, "", "", err
	}
	err = conn.QueryRow(ctx, selectSystem).Scan(&system)
	var refused *pgconn.PgError
	if errors.As(err, &refused) && slices.Contains(refusals, refused.Code) {
		err = nil
	}
	return pid, place, system, err
}

// readReplayed is readFrom of a standby. It waits up to replayTimeout until the standby has replayed the
// last seen change of before the call and the primary shows all that the standby does, and then fails with
// errNotHeld. Meanwhile it reads the state alone: the server executes all statements of a pipeline, and a list
// may be long.
func (d *Driver) readReplayed(ctx context.Context, pool *pgxpool.Pool, f readFunc) error {
	before, began := d.lineage.last(), time.Now()
	var o observation
	for pause := firstReplayPause; ; {
		if d.replayed.Load() >= before.revision {
			err := d.readOnce(ctx, pool, before, f)
			if !errors.Is(err, errNotHeld) {
				return err
			}
			d.replayed.Store(0) // it is another server, or another epoch, or ahead of the primary
		}
		err := d.readOnce(ctx, d.server.feedPool(), before, d.observe(&o))
		waited := time.Since(began)
		if err == nil || waited > replayTimeout {
			d.replayWaits.Observe(waited.Seconds())
		}
		switch {
		case err == nil:
			continue
		case !errors.Is(err, errNotHeld), waited > replayTimeout:
			return err
		}
		select {
		case <-ctx.Done():
			return d.server.translate(ctx.Err())
		case <-time.After(pause):
			pause = min(2*pause, longestReplayPause)
		}
	}
}

// checkReplay is check for a snapshot of a standby.
//
// Invariant: what a standby answers comes from the store that the primary has, in its epoch and with its
// lineage, and holds the last seen change. A process that writes to a server after a failover first changes
// the lineage in the store; so a standby that follows another server than the primary that this process is connected to
// is not read.
//
// Invariant: a standby's answer shows only what the primary has shown. If its revision is later than the last seen
// change, checkReplay asks the primary, for which w does not blame the standby. While a COMMIT waits for a synchronous
// standby, the primary hides what the other standbys have replayed, and a failover may lose it.
func (d *Driver) checkReplay(ctx context.Context, w *watchdog, before lastSeen, o *observation) error {
	switch {
	case !o.standby:
		return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, migrations.Explain(d.server.config, pgconn.ErrPrimaryConnection))
	case storeOf(o.instance) != storeOf(before.instance), !o.holds(before):
		return errNotHeld
	case o.Revision > d.lineage.last().revision:
		w.pause()
		if _, err := d.primary.State(ctx); err != nil {
			return err
		}
		w.expect()
		if last := d.lineage.last(); last.instance != before.instance || o.Revision > last.revision {
			return errNotHeld
		}
	}
	if seen := d.replayed.Load(); o.Revision > seen {
		d.replayed.CompareAndSwap(seen, o.Revision)
	}
	return nil
}

// storeOf returns the part of an instance that a server and its standbys have in common: all but the last
// two words, when the server was started and whether commits wait for a standby.
func storeOf(instance string) string {
	for range 2 {
		instance = instance[:max(strings.LastIndexByte(instance, ' '), 0)]
	}
	return instance
}
