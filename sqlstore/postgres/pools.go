package postgres

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// defaultReads is the number of connections for reads where the endpoint has no
	// pool_max_conns: lists keep theirs for as long as they stream.
	defaultReads = 10
	// defaultIdleTime is for how long a connection waits for the next use. A process whose
	// clients say nothing keeps four: for the poll, for the writer, for hints and for the
	// lock of use.
	defaultIdleTime = 5 * time.Second
	// defaultCheckPeriod is how often a pool looks for idle connections. Each look reverses
	// the order in which the pool uses them, so that the poll uses two in turn, a period
	// each: unless the idle time is less than the period, the second may never be closed.
	defaultCheckPeriod = 10 * time.Second
)

// maxLocks bounds the locks by name that are held at a time, that of use among them.
const maxLocks = 5

// openPools makes the pools; none connects before it is used. Invariant: nothing that
// waits for another connection of this process uses the pool of reads, so that no size of
// this pool can deadlock. The writer and the holders of locks by name have pools of their
// own, and Listen has a connection without a pool.
func (d *Driver) openPools(ctx context.Context, config *pgxpool.Config) (err error) {
	// A connection that was idle is pinged before it is used. The ping has a deadline of
	// its own, because its caller may have gone. Otherwise the ping of a silent server
	// would keep its place in the pool for a minute, and Close would wait for it.
	config.PingTimeout = cmp.Or(config.PingTimeout, d.options.ReadTimeout)
	config.BeforeConnect = closeSoon(true, d.refresh)
	if d.reads, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	writes := config.Copy()
	writes.MaxConns, writes.MinConns, writes.MinIdleConns = 1, 0, 0
	writes.BeforeConnect = closeSoon(false, d.refresh)
	writes.AfterConnect = d.prepareSession
	if d.writes, err = pgxpool.NewWithConfig(ctx, writes); err != nil {
		return err
	}
	locks := config.Copy()
	locks.MaxConns, locks.MinConns, locks.MinIdleConns = maxLocks, 0, 0
	d.locks, err = pgxpool.NewWithConfig(ctx, locks)
	return err
}

const (
	// growthPause is how long a read waits for a connection that another read has before
	// the pool makes one more. To connect takes longer than most reads.
	growthPause = 5 * time.Millisecond
	// growthCheck is how often it looks.
	growthCheck = 500 * time.Microsecond
)

// reader acquires a connection for a read. Reads that coincide now and then, as the poll
// and a hint do, share one connection: a process whose clients say nothing keeps no second.
func (d *Driver) reader(ctx context.Context) (*pgxpool.Conn, error) {
	for deadline := time.Now().Add(growthPause); time.Now().Before(deadline); {
		stat := d.reads.Stat()
		if stat.IdleConns() > 0 || stat.TotalConns() == 0 || stat.TotalConns() == stat.MaxConns() {
			break // nobody has to be waited for, or Acquire waits
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(growthCheck):
		}
	}
	return d.reads.Acquire(ctx)
}

// hasSession reports whether the writer's connection is a session of the server's.
// Behind a pooler it is not: each transaction may run in another session, which has
// neither the settings nor the prepared statements of the one before.
func (d *Driver) hasSession() bool {
	return d.config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement
}

// prepareSession makes the settings of a batch, and prepares its statements, when the
// connection is made: to prepare a statement takes locks on the tables, and a failure
// after a batch was sent may leave its outcome unknown.
func (d *Driver) prepareSession(ctx context.Context, conn *pgx.Conn) error {
	if !d.hasSession() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, d.options.ReadTimeout)
	defer cancel()
	if _, err := conn.Exec(ctx, configure, milliseconds(d.options.LockTimeout), false); err != nil {
		return err
	}
	for _, query := range []string{begin, lock, applyBatch, unlimited, commit} {
		if _, err := conn.Prepare(ctx, query, query); err != nil {
			return err
		}
	}
	return nil
}
