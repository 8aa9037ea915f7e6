package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"byre/migrations/dbserver"
	"byre/sqlstore"
)

// errNoAnswer is the cause for which a watchdog cancels the context of a read.
var errNoAnswer = errors.New("no answer in time")

// errBusy is the error of a read that got no connection within Options.ReadTimeout, because
// other reads use all of them. It says nothing about the server; the watchdogs of those
// reads find out whether it answers.
var errBusy = errors.New("all connections for reads are in use (pool_max_conns)")

// watchdog cancels a read when the server has not answered for timeout.
//
// Invariant: its timer runs only while the driver waits for the server. The functions that
// read call pause before they give a row to the caller, and expect after that. Otherwise a
// slow caller would look like a silent server.
type watchdog struct {
	timer   *time.Timer
	timeout time.Duration
}

// expect starts the timer: the server must send the next row or message within timeout.
func (w *watchdog) expect() { w.timer.Reset(w.timeout) }

// pause stops the timer: the server has answered.
func (w *watchdog) pause() { w.timer.Stop() }

// read calls f with a connection and with the position that the snapshot of f must hold; f
// calls check with it.
//
// Invariant: every read has a deadline and notices lost commits, because every read of the
// driver calls read. If the server does not answer, or is not the primary any more, read
// drops the idle connections of the pools, which may lead to the same host. If f fails with
// errLost, read begins a new epoch.
func (d *Driver) read(ctx context.Context, f func(context.Context, *pgxpool.Conn, *watchdog, position) error) error {
	before, began := d.history.last(), time.Now()
	reading, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &watchdog{timeout: d.options.ReadTimeout}
	w.timer = time.AfterFunc(w.timeout, func() { cancel(errNoAnswer) })
	defer w.pause()
	err := func() error {
		conn, err := d.acquireReader(reading)
		if err != nil {
			if stat := d.reads.Stat(); ctx.Err() == nil && stat.AcquiredConns() == stat.MaxConns() {
				return errBusy
			}
			return err
		}
		defer conn.Release()
		return f(reading, conn, w, before)
	}()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errBusy):
		return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, errBusy)
	case errors.Is(context.Cause(reading), errNoAnswer):
		d.waiting.endIfBefore(began)
		return d.silent()
	case errors.Is(err, errLost):
		if epochErr := d.startEpoch(ctx, before); epochErr != nil {
			return epochErr
		}
		return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, errLost)
	case errors.Is(err, pgconn.ErrReadOnlyConnection):
		d.reset()
	}
	return d.translate(err)
}

// silent drops the connections to a server that does not answer, and returns the error that
// says so.
func (d *Driver) silent() error {
	d.reset()
	return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, dbserver.Explain(d.config, context.DeadlineExceeded))
}

// reset drops all connections: idle ones now, those in use when they are released.
func (d *Driver) reset() {
	d.reads.Reset()
	d.writes.Reset()
	d.locks.Reset()
}
