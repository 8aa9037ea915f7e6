package postgres

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"byre/migrations"
)

const (
	// defaultReads is the greatest number of connections for reads, if the endpoint does
	// not set pool_max_conns. A list uses its connection for as long as it streams.
	defaultReads = 10
	// defaultIdleTime is how long a connection may be idle before the pool closes it. An
	// idle process keeps four connections: for the poll, for the writer, for hints and for
	// the in-use lock.
	defaultIdleTime = 5 * time.Second
	// defaultCheckPeriod is the time between two checks for idle connections. It must be
	// longer than the idle time: each check reverses the order in which the pool uses its
	// connections, so that the poll alternates between two of them, one period each. With
	// a shorter period neither would be idle for long enough to be closed.
	defaultCheckPeriod = 10 * time.Second
)

// maxLocks is how many advisory locks this process can hold at the same time, the in-use lock
// included.
const maxLocks = 5

// maxFeed is the number of connections for State, the Changes of all resources and Notify, of which
// a process has one at a time each. Notify and isDone wait for no table.
const maxFeed = 3

// server is the database server, and the connections to it.
type server struct {
	options Options
	config  *pgx.ConnConfig
	// refresh reads the files with the credentials again, for each new connection.
	refresh beforeConnect
	// primaries refuses a primary that was replaced; nil for the server of a standby.
	primaries *migrations.Primaries
	// reads is for reads. feed is for State, the Changes of all resources and Notify, with
	// which the processes follow each other, and for isDone, while reads is busy (feedPool).
	// writes has one connection, which only the writer uses. locks has connections whose
	// transactions hold advisory locks, while their holders use other connections.
	reads, feed, writes, locks *pgxpool.Pool
	// warned is set when the server warns the connection that commits.
	warned atomic.Bool
	// unlocked is when an advisory lock was last released, in nanoseconds since 1970.
	unlocked atomic.Int64
}

// openPools makes the pools, which connect when they are first used.
//
// Invariant: whoever holds a connection of the pool for reads does not wait for another
// connection of this process. So this pool can't deadlock, whatever its size is. The writer
// and the holders of advisory locks have pools of their own for that, and Listen has a
// connection outside of the pools. A read of a standby may wait for a connection to the primary,
// and no read of a primary waits for one to a standby.
//
// Invariant: reads that wait, for the lock of a table or for slow clients, do not keep the
// process from learning the last revision. State and the Changes of all resources use a pool of
// their own where such reads may have all connections (feedPool); the Changes of one resource, which
// many watches read at the same time, are such reads. Otherwise all linearizable reads of cached
// resources would wait too.
func (s *server) openPools(ctx context.Context, config *pgxpool.Config) (err error) {
	// The pool pings a connection that was idle before it gives it out. The ping goes on
	// when the caller's context ends, and therefore has a timeout of its own. Without it,
	// the ping of a server that does not answer would occupy its place in the pool for a
	// minute, and Close would wait for it.
	config.PingTimeout = cmp.Or(config.PingTimeout, s.options.ReadTimeout)
	config.BeforeConnect = closeSoon(true, s.refresh)
	config.AfterConnect = s.prepareReads
	if s.options.readsOnly {
		config = resized(config, 1) // a cancel request takes no place of the server's max_connections
	}
	if s.reads, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	if s.options.readsOnly {
		s.feed, s.writes = s.reads, s.reads // followInstance uses writes, to read
		return nil
	}
	if s.feed, err = pgxpool.NewWithConfig(ctx, resized(config, maxFeed)); err != nil {
		return err
	}
	writes := resized(config, 1)
	writes.BeforeConnect = closeSoon(false, s.refresh)
	writes.AfterConnect = s.prepareSession
	writes.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.Code == codeWarning {
			s.warned.Store(true)
		}
	}
	if s.writes, err = pgxpool.NewWithConfig(ctx, writes); err != nil {
		return err
	}
	s.locks, err = pgxpool.NewWithConfig(ctx, resized(config, maxLocks))
	return err
}

// resized returns a copy of config for a pool of up to n connections.
func resized(config *pgxpool.Config, n int32) *pgxpool.Config {
	config = config.Copy()
	config.MaxConns, config.MinConns, config.MinIdleConns = n, 0, 0
	return config
}

// feedPool returns the pool for State, the Changes of all resources, Notify and isDone: that of all
// reads while at least half of it is free, so that an idle process needs no connection more for them.
// A connection that is being made is for a read that waits for it.
func (s *server) feedPool() *pgxpool.Pool {
	if stat := s.reads.Stat(); stat.AcquiredConns()+stat.ConstructingConns() < stat.MaxConns()/2 {
		return s.reads
	}
	return s.feed
}

// pools returns the pools that are open.
func (s *server) pools() []*pgxpool.Pool {
	return slices.DeleteFunc([]*pgxpool.Pool{s.locks, s.writes, s.feed, s.reads}, func(p *pgxpool.Pool) bool { return p == nil })
}

const (
	// growthPause is how long a read waits for another read to release its connection,
	// before the pool makes one more. To connect takes longer than most reads.
	growthPause = 5 * time.Millisecond
	// growthCheck is the time between two looks for a free connection.
	growthCheck = 500 * time.Microsecond
)

// acquireReader acquires a connection of a pool for a read. It waits for growthPause before the pool
// makes another connection, so that reads that coincide now and then, as the poll and a hint
// do, use one connection after the other. An idle process then keeps one connection for
// reads.
func acquireReader(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	for deadline := time.Now().Add(growthPause); time.Now().Before(deadline); {
		stat := pool.Stat()
		if stat.IdleConns() > 0 || stat.TotalConns() == 0 || stat.TotalConns() == stat.MaxConns() {
			break // a connection is free, or must be made, or Acquire waits for one
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(growthCheck):
		}
	}
	return pool.Acquire(ctx)
}

// hasSession reports whether the writer's connection is one session of the server. Behind a
// pooler each transaction may run in another session, which has neither the settings nor the
// prepared statements of the previous one.
func (s *server) hasSession() bool {
	return s.config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement
}

// prepareReads makes the settings for reads when the connection is made.
func (s *server) prepareReads(ctx context.Context, conn *pgx.Conn) error {
	if !s.hasSession() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.options.ReadTimeout)
	defer cancel()
	_, err := conn.Exec(ctx, configureReads)
	return err
}

// prepareSession makes the settings for batches and prepares their statements when the
// connection is made. Preparing a statement takes locks on the tables and can fail; in the
// middle of a batch such a failure could leave the outcome unknown.
func (s *server) prepareSession(ctx context.Context, conn *pgx.Conn) error {
	if !s.hasSession() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.options.ReadTimeout)
	defer cancel()
	if _, err := conn.Exec(ctx, configure, milliseconds(s.options.LockTimeout), false); err != nil {
		return err
	}
	for _, query := range []string{begin, lock, addResources, applyBatch, unlimited, commit} {
		if _, err := conn.Prepare(ctx, query, query); err != nil {
			return err
		}
	}
	return nil
}
