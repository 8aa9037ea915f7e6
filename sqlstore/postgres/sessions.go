package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"byre/migrations"
	"byre/sqlstore"
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
	// primaries refuses a primary that was replaced.
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
// connection outside of the pools.
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
	if s.reads, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
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
	return slices.DeleteFunc([]*pgxpool.Pool{s.locks, s.writes, s.feed, s.reads}, func(p *pgxpool.Pool) bool {
		return p == nil
	})
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

// errNoAnswer is the cause for which a watchdog cancels the context of a read.
var errNoAnswer = errors.New("no answer in time")

// errBusy is the error of a read that got no connection within Options.ReadTimeout, because
// other reads use all of them. It says nothing about the server; the watchdogs of those
// reads find out whether it answers.
var errBusy = errors.New("all connections for reads are in use (pool_max_conns)")

// watchdog calls a function when the server has not answered for timeout.
//
// Invariant: its timer runs only while the driver waits for the server. The functions that
// read call pause before they give a row to the caller, and expect after that. Otherwise a
// slow caller would look like a silent server.
type watchdog struct {
	timer   *time.Timer
	timeout time.Duration
	// answers counts the calls of expect and pause.
	answers atomic.Int64
	// session is the process ID of the read's session; 0 until it has one.
	session atomic.Uint32
}

// watch returns a watchdog that cancels a read when the server has not answered for
// Options.ReadTimeout. In the last quarter of that time the watchdog asks the server, on another
// connection, whether it works on the read: a read that waits for the lock of a table gets no
// answer, and the server is there. It asks before it cancels, because that ends the session.
func (s *server) watch(ctx context.Context, cancel context.CancelCauseFunc) *watchdog {
	quarter := s.options.ReadTimeout / 4
	w := &watchdog{timeout: s.options.ReadTimeout - quarter}
	w.timer = time.AfterFunc(w.timeout, func() {
		asking, stop := context.WithTimeout(ctx, quarter)
		defer stop()
		seen, cause := w.answers.Load(), errNoAnswer
		if s.isWorking(asking, w.session.Load()) {
			<-asking.Done()
			cause = errStatementWaits
		}
		if w.answers.Load() == seen {
			cancel(cause)
		}
	})
	return w
}

// expect starts the timer: the server must send the next row or message within timeout.
func (w *watchdog) expect() {
	w.answers.Add(1)
	w.timer.Reset(w.timeout)
}

// pause stops the timer: the server has answered.
func (w *watchdog) pause() {
	w.answers.Add(1)
	w.timer.Stop()
}

// errStatementWaits is the error of a read that got no answer in time from a server that
// answers others.
var errStatementWaits = errors.New(
	"the server answers, but has not ended a read in time: see pg_stat_activity for the lock " +
		"or the load that the statement waits for")

// readFunc reads on a connection, from a snapshot that holds a last seen change; see readFrom.
type readFunc func(context.Context, *pgxpool.Conn, *watchdog, lastSeen) error

// read is readFrom with the pool for reads.
func (d *Driver) read(ctx context.Context, f readFunc) error {
	return d.readFrom(ctx, d.server.reads, f)
}

// readFrom calls f with a connection of a pool and with the last seen change that the snapshot of f must
// hold; f calls check with it.
//
// Invariant: every read has a deadline and notices lost commits, because every read of the
// driver calls readFrom. If the server does not answer, or is not the primary any more, readFrom
// drops the idle connections of the pools, which may lead to the same host. If f fails with
// errNotHeld, readFrom follows the instance and calls f again.
func (d *Driver) readFrom(ctx context.Context, pool *pgxpool.Pool, f readFunc) error {
	for attempt := 1; ; attempt++ {
		before := d.lineage.last()
		err := d.readOnce(ctx, pool, before, f)
		if !errors.Is(err, errNotHeld) {
			return err
		}
		if err := d.followInstance(ctx, before); err != nil {
			return err
		}
		if attempt == attempts {
			return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, errNotHeld)
		}
	}
}

func (d *Driver) readOnce(ctx context.Context, pool *pgxpool.Pool, before lastSeen, f readFunc) error {
	began := time.Now()
	reading, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := d.server.watch(reading, cancel)
	defer w.pause()
	err := func() error {
		conn, err := acquireReader(reading, pool)
		if err != nil {
			if stat := pool.Stat(); ctx.Err() == nil && stat.AcquiredConns() == stat.MaxConns() {
				return errBusy
			}
			return err
		}
		defer conn.Release()
		w.session.Store(conn.Conn().PgConn().PID())
		return f(reading, conn, w, before)
	}()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errBusy):
		return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, errBusy)
	case errors.Is(context.Cause(reading), errStatementWaits):
		return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, errStatementWaits)
	case errors.Is(context.Cause(reading), errNoAnswer):
		d.waiting.endIfBefore(began)
		if w.session.Load() == 0 {
			return d.server.notConnected(pool)
		}
		return d.server.silent()
	case errors.Is(err, errNotHeld):
		return err
	case errors.Is(err, pgconn.ErrReadOnlyConnection):
		d.server.reset()
	}
	return d.server.translate(err)
}

// silent drops the connections to a server that does not answer, and returns the error that
// says so.
func (s *server) silent() error {
	s.reset()
	return s.noAnswer()
}

// notConnected returns the error of a caller that got no connection of a pool in time. It drops none while the
// pool makes one: pgx may try several addresses, each for connect_timeout, before it reaches the server, and the next
// caller uses that connection.
func (s *server) notConnected(pool *pgxpool.Pool) error {
	if stat := pool.Stat(); stat.ConstructingConns() == 0 || stat.IdleConns() > 0 {
		s.reset()
	}
	return s.noAnswer()
}

func (s *server) noAnswer() error {
	return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, migrations.Explain(s.config, context.DeadlineExceeded))
}

// reset drops all connections: idle ones now, those in use when they are released.
func (s *server) reset() {
	for _, pool := range s.pools() {
		pool.Reset()
	}
}

// closeTimeout bounds each of the two steps in which pgx closes a connection whose context
// has ended: it asks the server to cancel the statement, and it reads the rest of the answer.
//
// Invariant: a connection that pgx closes leaves its pool within two closeTimeouts.
// closeSoon and closingConn keep it. pgx alone takes up to 15 seconds if the server does not
// answer. The pool of the writer has one connection: meanwhile the process could not write,
// even if another host has taken over.
const closeTimeout = time.Second

var errNoCancel = errors.New("a commit is not cancelled")

// beforeConnect is the type of pgxpool.Config.BeforeConnect.
type beforeConnect = func(context.Context, *pgx.ConnConfig) error

// closeSoon returns a function for pgxpool.Config.BeforeConnect that keeps the invariant
// of closeTimeout. mayCancel says whether pgx may ask the server to cancel the statement of
// a connection that it closes. The function calls before first, which may change the
// configuration.
//
// mayCancel is false for the writer's connection. A cancelled COMMIT stops waiting for its
// synchronous standby, and its changes become visible although they are not replicated.
// Without a cancel request the COMMIT keeps waiting after the client has gone, and its
// changes stay invisible until the standby has them.
func closeSoon(mayCancel bool, before beforeConnect) beforeConnect {
	return func(ctx context.Context, config *pgx.ConnConfig) error {
		if err := before(ctx, config); err != nil {
			return err
		}
		var connected atomic.Bool
		dial := config.DialFunc
		config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			// Once the connection is made, pgx dials only for cancel requests.
			isCancel := connected.Load()
			if isCancel && !mayCancel {
				return nil, errNoCancel
			}
			if isCancel {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, closeTimeout)
				defer cancel()
			}
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			if isCancel {
				if err := conn.SetDeadline(time.Now().Add(closeTimeout)); err != nil {
					return nil, errors.Join(err, conn.Close())
				}
			}
			return closingConn{conn}, nil
		}
		config.AfterConnect = func(context.Context, *pgconn.PgConn) error {
			connected.Store(true)
			return nil
		}
		return nil
	}
}

// closingConn bounds deadlines in the future by closeTimeout. pgx sets such a deadline only
// when it closes the connection.
type closingConn struct{ net.Conn }

// SetDeadline implements net.Conn.
func (c closingConn) SetDeadline(t time.Time) error {
	if latest := time.Now().Add(closeTimeout); t.After(latest) {
		t = latest
	}
	return c.Conn.SetDeadline(t)
}

// batchWait is the wait for the answer to the batch under way, if there is one.
//
// Invariant: the driver does not wait for the answer to a batch from a server that does not
// answer reads. A read that began after the batch and got no answer calls endIfBefore, and
// the outcome of the batch is unknown. Otherwise the writer would wait for as long as a
// COMMIT may take, although another host may have taken over. While a COMMIT waits for its
// synchronous standby, the server answers reads, and the wait continues.
type batchWait struct {
	mu    sync.Mutex
	began time.Time
	// giveUp ends the wait; nil if no batch is under way.
	giveUp context.CancelFunc
}

// begin records that a batch is being sent. giveUp ends the wait for its answer.
func (w *batchWait) begin(giveUp context.CancelFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began, w.giveUp = time.Now(), giveUp
}

// end records that the wait for the batch is over.
func (w *batchWait) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.giveUp = nil
}

// endIfBefore ends the wait for a batch that began before a time.
func (w *batchWait) endIfBefore(t time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.giveUp != nil && w.began.Before(t) {
		w.giveUp()
	}
}

// sessionInterval is the time between two questions of watchSession.
const sessionInterval = time.Second

// watchSession calls giveUp, which ends the wait for a batch, when the session of the batch
// has nothing to do: then the network has lost the batch or its answer. watchSession asks the
// server on another connection, the first time after Options.ReadTimeout, until the caller
// calls stop. It does not give up a batch whose session works, or waits for a lock or for a
// synchronous standby.
//
// Behind a pooler the driver does not know the session. There it waits for a batch until its
// deadline.
func (s *server) watchSession(ctx context.Context, conn *pgxpool.Conn, giveUp func()) (stop func()) {
	if !s.hasSession() {
		return func() {}
	}
	pid := conn.Conn().PgConn().PID()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	timer := time.AfterFunc(s.options.ReadTimeout, func() {
		defer close(ended)
		for ctx.Err() == nil {
			if done, err := s.isDone(ctx, pid); err == nil && done {
				giveUp()
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(sessionInterval):
			}
		}
	})
	return func() {
		cancel()
		if !timer.Stop() {
			<-ended
		}
	}
}

// isDone reports whether the server says that a session has had nothing to do for a second,
// or does not exist. It asks on a connection that waits for no table.
func (s *server) isDone(ctx context.Context, pid uint32) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.options.ReadTimeout)
	defer cancel()
	err = s.feedPool().QueryRow(ctx, isDone, int64(pid)).Scan(&done)
	return done, err
}

// isWorking reports whether the server says that a session of it works or waits. Any answer is
// enough behind a pooler, where the driver does not know the session, and for a read that got no
// connection (0).
func (s *server) isWorking(ctx context.Context, pid uint32) bool {
	done, err := s.isDone(ctx, pid)
	return err == nil && (!done || pid == 0 || !s.hasSession())
}
