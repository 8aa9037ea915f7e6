package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"byre/migrations"
	"byre/sqlstore"
)

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
var errStatementWaits = errors.New("the server answers, but has not ended a read in time: see pg_stat_activity for the lock " +
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
	if d.primary != nil {
		return d.readReplayed(ctx, pool, f)
	}
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
	case errors.Is(err, pgconn.ErrReadOnlyConnection), errors.Is(err, pgconn.ErrPrimaryConnection):
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
