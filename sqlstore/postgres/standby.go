package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"byre/migrations"
	"byre/sqlstore"
)

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
