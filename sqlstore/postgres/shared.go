package postgres

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"byre/sqlstore"
)

// Compact implements sqlstore.Driver. Revisions being dense, limit changes are
// a range of the primary key. The writers' lock is taken last, for the time of
// the COMMIT.
func (d *Driver) Compact(ctx context.Context, upTo int64, limit int) (done bool, err error) {
	state, err := d.State(ctx)
	if err != nil {
		return false, err
	}
	upTo = min(upTo, state.Revision)
	if upTo <= state.Compacted {
		return true, nil
	}
	target := min(upTo, state.Compacted+int64(limit))
	err = pgx.BeginFunc(ctx, d.reads, func(tx pgx.Tx) error {
		var b pgx.Batch
		b.Queue(configureCompact, milliseconds(d.options.LockTimeout))
		b.Queue(deleteChanges, target)
		b.Queue(updateCompacted, target)
		return tx.SendBatch(ctx, &b).Close()
	})
	return target == upTo, translate(err)
}

// Exclusively implements sqlstore.Excluder by an advisory lock of an otherwise
// idle transaction. It says something every so often; the server ends the
// session of a process that doesn't.
func (d *Driver) Exclusively(ctx context.Context, name string, f func(context.Context) error) (ran bool, err error) {
	tx, err := d.reads.Begin(ctx)
	if err != nil {
		return false, translate(err)
	}
	// It wrote nothing; this gives back the lock.
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, idleTimeout, milliseconds(d.options.LockTimeout)); err != nil {
		return false, translate(err)
	}
	if err := tx.QueryRow(ctx, tryLock, name).Scan(&ran); err != nil || !ran {
		return false, translate(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var holding sync.WaitGroup
	holding.Go(func() { d.hold(ctx, cancel, tx) })
	err = f(ctx)
	cancel()
	holding.Wait()
	return true, err
}

// hold keeps the transaction from looking idle and calls lost when it is gone.
func (d *Driver) hold(ctx context.Context, lost func(), tx pgx.Tx) {
	defer lost()
	ticker := time.NewTicker(d.options.LockTimeout / 5)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if _, err := tx.Exec(ctx, touch); err != nil {
				return
			}
		}
	}
}

// Notify implements sqlstore.Hinter.
func (d *Driver) Notify(ctx context.Context, revision int64) error {
	_, err := d.reads.Exec(ctx, notify, strconv.FormatInt(revision, 10))
	return translate(err)
}

// reconnectPause is how long Listen waits before it connects again.
const reconnectPause = time.Second

// Listen implements sqlstore.Hinter on a connection of its own.
func (d *Driver) Listen(ctx context.Context, f func(revision int64)) error {
	for {
		err := d.listen(ctx, f)
		if ctx.Err() != nil {
			return nil
		}
		if err := translate(err); !errors.Is(err, sqlstore.ErrUnavailable) {
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
	conn, err := pgx.ConnectConfig(ctx, d.reads.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var channel string
	if err := conn.QueryRow(ctx, selectChannel).Scan(&channel); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, `LISTEN `+pgx.Identifier{channel}.Sanitize()); err != nil {
		return err
	}
	f(0)
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		// What isn't a number is from someone else: look for yourself.
		revision, err := strconv.ParseInt(n.Payload, 10, 64)
		if err != nil {
			revision = 0
		}
		f(revision)
	}
}
