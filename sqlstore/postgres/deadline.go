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

// errNoAnswer is the cause of a read's end if the server did not answer for
// Options.ReadTimeout.
var errNoAnswer = errors.New("no answer in time")

// errBusy is the error of a read that got no connection in that time, because other reads
// have all of them. It tells nothing about the server: the readers of those find out.
var errBusy = errors.New("all connections for reads are in use (pool_max_conns)")

// watchdog ends a read when the server does not answer for too long. Invariant: it runs
// while the driver waits for the server, and not while the caller uses what was read.
type watchdog struct {
	timer   *time.Timer
	timeout time.Duration
}

// expect starts the time for the server's next row or message.
func (w *watchdog) expect() { w.timer.Reset(w.timeout) }

// pause stops the time: the server has answered.
func (w *watchdog) pause() { w.timer.Stop() }

// read calls f with a connection, and with the position to check what f reads. Every read
// goes through here, so that every read has a deadline and notices lost commits. When the
// server was silent, or is not the primary any more, the connections that wait in the
// pools are dropped: they may lead to the same host.
func (d *Driver) read(ctx context.Context, f func(context.Context, *pgxpool.Conn, *watchdog, position) error) error {
	before, began := d.history.last(), time.Now()
	reading, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &watchdog{timeout: d.options.ReadTimeout}
	w.timer = time.AfterFunc(w.timeout, func() { cancel(errNoAnswer) })
	defer w.pause()
	err := func() error {
		conn, err := d.reader(reading)
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

// silent drops the connections of a server that does not answer.
func (d *Driver) silent() error {
	d.reset()
	return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, dbserver.Explain(d.config, context.DeadlineExceeded))
}

func (d *Driver) reset() {
	d.reads.Reset()
	d.writes.Reset()
	d.locks.Reset()
}
