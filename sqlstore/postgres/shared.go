package postgres

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"byre/sqlstore"
)

// Compact implements sqlstore.Driver. Revisions being dense, limit changes are
// a range of the primary key; those that a new epoch left behind go with them.
// The writers' lock is taken last, for the time of the COMMIT.
//
// Invariant: a compaction deletes only from a store that holds the driver's position,
// which its own transaction checks. Otherwise, on a server that has lost commits, it
// would move the revision over those that are missing, and nobody could find them gone.
func (d *Driver) Compact(ctx context.Context, upTo int64, limit int) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.options.LockTimeout+d.options.CommitTimeout)
	defer cancel()
	err = d.read(ctx, func(ctx context.Context, conn *pgxpool.Conn, w *watchdog, before position) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			var o observation
			if err := tx.QueryRow(ctx, selectState, before.revision).Scan(o.columns()...); err != nil {
				return err
			}
			if err := d.check(before, &o); err != nil {
				return err
			}
			w.pause() // the server deletes; ctx bounds it
			last := min(upTo, o.Revision)
			target := max(o.Compacted, min(last, o.Compacted+int64(limit)))
			deleted, err := d.deleteChanges(ctx, tx, target, limit)
			done = target >= last && deleted < int64(limit)
			return err
		})
	})
	return done && err == nil, err
}

// deleteChanges compacts up to a revision, in a transaction, and says how many changes
// it has deleted.
func (d *Driver) deleteChanges(ctx context.Context, tx pgx.Tx, upTo int64, limit int) (deleted int64, err error) {
	var b pgx.Batch
	b.Queue(configureCompact, milliseconds(d.options.LockTimeout))
	b.Queue(deleteChanges, upTo, limit).Exec(func(tag pgconn.CommandTag) error {
		deleted = tag.RowsAffected()
		return nil
	})
	b.Queue(updateCompacted, upTo)
	return deleted, tx.SendBatch(ctx, &b).Close()
}

// WithLock implements sqlstore.Locker by an advisory lock of an otherwise idle
// transaction. holdLock sends a statement now and then; the server ends the session of a
// process that does not.
func (d *Driver) WithLock(ctx context.Context, name string, f func(context.Context) error) (ran bool, err error) {
	conn, ran, err := d.tryLock(ctx, tryLock, name)
	if conn != nil {
		defer d.unlock(ctx, conn)
	}
	if err != nil || !ran {
		return false, d.translate(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var holding sync.WaitGroup
	holding.Go(func() { d.holdLock(ctx, cancel, conn) })
	err = f(ctx)
	cancel()
	holding.Wait()
	return true, err
}

// tryLock returns the connection whose transaction holds the lock, if locked.
func (d *Driver) tryLock(ctx context.Context, query, name string) (conn *pgxpool.Conn, locked bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.options.ReadTimeout)
	defer cancel()
	if conn, err = d.locks.Acquire(ctx); err != nil {
		return nil, false, err
	}
	var b pgx.Batch
	b.Queue(begin)
	b.Queue(idleTimeout, milliseconds(d.options.LockTimeout))
	b.Queue(query, name).QueryRow(func(row pgx.Row) error { return row.Scan(&locked) })
	err = conn.SendBatch(ctx, &b).Close()
	return conn, locked, err
}

// unlock ends the transaction, which wrote nothing. If that fails, Release drops the
// connection, and the server releases the lock. A connection that is not likely to be used
// again before the pool would close it is closed now: the compaction of each minute would
// otherwise leave an idle one for a quarter of the time.
func (d *Driver) unlock(ctx context.Context, conn *pgxpool.Conn) {
	defer conn.Release()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.options.ReadTimeout)
	defer cancel()
	_, _ = conn.Exec(ctx, rollback)
	now := time.Now().UnixNano()
	if last := d.unlocked.Swap(now); time.Duration(now-last) > d.locks.Config().MaxConnIdleTime {
		_ = conn.Conn().Close(ctx) // Release notices
	}
}

// holdLock keeps the server from ending the idle transaction, and calls lost when the
// transaction is gone.
func (d *Driver) holdLock(ctx context.Context, lost func(), conn *pgxpool.Conn) {
	defer lost()
	ticker := time.NewTicker(d.options.LockTimeout / 5)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if !d.touch(ctx, conn) {
				return
			}
		}
	}
}

// touch reports whether the session still exists. The server must answer within
// LockTimeout, because it ends a session that was silent for so long.
func (d *Driver) touch(ctx context.Context, conn *pgxpool.Conn) bool {
	ctx, cancel := context.WithTimeout(ctx, d.options.LockTimeout*3/5)
	defer cancel()
	_, err := conn.Exec(ctx, touch)
	return err == nil
}

// Notify implements sqlstore.Notifier.
func (d *Driver) Notify(ctx context.Context, revision int64) error {
	return d.read(ctx, func(ctx context.Context, conn *pgxpool.Conn, _ *watchdog, _ position) error {
		_, err := conn.Exec(ctx, notify, strconv.FormatInt(revision, 10))
		return err
	})
}

// reconnectPause is how long Listen waits before it connects again.
const reconnectPause = time.Second

// Listen implements sqlstore.Notifier on a connection of its own.
func (d *Driver) Listen(ctx context.Context, f func(revision int64)) error {
	for {
		err := d.listen(ctx, f)
		if ctx.Err() != nil {
			return nil
		}
		if err := d.translate(err); !errors.Is(err, sqlstore.ErrUnavailable) {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reconnectPause):
		}
	}
}

func (d *Driver) listen(ctx context.Context, f func(revision int64)) error {
	conn, err := d.startListening(ctx)
	if err != nil {
		return err
	}
	defer d.stopListening(ctx, conn)
	f(0)
	for {
		n, err := d.nextHint(ctx, conn)
		if err != nil {
			return err
		}
		// A payload that is not a number is another program's. It counts as a hint
		// without a revision.
		revision, err := strconv.ParseInt(n.Payload, 10, 64)
		if err != nil {
			revision = 0
		}
		f(revision)
	}
}

func (d *Driver) startListening(ctx context.Context) (*pgx.Conn, error) {
	config := d.config.Copy()
	if err := d.refresh(ctx, config); err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config) // which has its own time-out
	if err != nil {
		return nil, err
	}
	asking, cancel := context.WithTimeout(ctx, d.options.ReadTimeout)
	defer cancel()
	var channel string
	err = conn.QueryRow(asking, selectChannel).Scan(&channel)
	if err == nil {
		_, err = conn.Exec(asking, `LISTEN `+pgx.Identifier{channel}.Sanitize())
	}
	if err != nil {
		d.stopListening(ctx, conn)
		return nil, err
	}
	return conn, nil
}

func (d *Driver) stopListening(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.options.ReadTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}

// listenPause is how long a listening connection may be quiet before the driver pings the
// server.
const listenPause = 15 * time.Second

// nextHint waits for a notification.
func (d *Driver) nextHint(ctx context.Context, conn *pgx.Conn) (*pgconn.Notification, error) {
	for {
		n, err := notification(ctx, conn, listenPause)
		if err == nil || ctx.Err() != nil || conn.IsClosed() {
			return n, err
		}
		asking, cancel := context.WithTimeout(ctx, d.options.ReadTimeout)
		_, err = conn.Exec(asking, touch)
		cancel()
		if err != nil {
			return nil, err
		}
	}
}

func notification(ctx context.Context, conn *pgx.Conn, timeout time.Duration) (*pgconn.Notification, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return conn.WaitForNotification(ctx)
}
