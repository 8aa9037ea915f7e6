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

	"byre/migrations"
	"byre/sqlstore"
)

// WithLock implements sqlstore.Shared by an advisory lock of a transaction that is otherwise
// idle. The transaction has an idle timeout, so that the server releases the lock of a
// process that has stopped; holdLock sends statements to keep the transaction alive.
func (d *Driver) WithLock(ctx context.Context, name string, f func(context.Context) error) (ran bool, err error) {
	conn, ran, err := d.server.tryLock(ctx, tryLock, name)
	if conn != nil {
		defer d.server.unlock(ctx, conn)
	}
	if err != nil || !ran {
		return false, d.server.translate(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var holding sync.WaitGroup
	holding.Go(func() { d.server.holdLock(ctx, cancel, conn, sendTouch) })
	err = f(ctx)
	cancel()
	holding.Wait()
	return true, err
}

// tryLock begins a transaction that tries to take an advisory lock; query says which. If locked
// is true, the transaction on conn holds the lock. The caller passes conn to unlock unless it
// is nil.
func (s *server) tryLock(ctx context.Context, query, name string) (conn *pgxpool.Conn, locked bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.options.ReadTimeout)
	defer cancel()
	if conn, err = s.locks.Acquire(ctx); err != nil {
		return nil, false, err
	}
	var b pgx.Batch
	b.Queue(begin)
	b.Queue(idleTimeout, milliseconds(s.options.LockTimeout))
	b.Queue(query, name).QueryRow(func(row pgx.Row) error { return row.Scan(&locked) })
	err = conn.SendBatch(ctx, &b).Close()
	return conn, locked, err
}

// unlock ends the transaction of a lock, which has written nothing. If that fails, Release
// closes the connection, and the server releases the lock. If locks are taken less often than
// connections may be idle, unlock closes the connection at once. Otherwise the compaction,
// which runs once a minute, would have an idle connection for a quarter of the time.
func (s *server) unlock(ctx context.Context, conn *pgxpool.Conn) {
	defer conn.Release()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.options.ReadTimeout)
	defer cancel()
	_, _ = conn.Exec(ctx, rollback)
	now := time.Now().UnixNano()
	if last := s.unlocked.Swap(now); time.Duration(now-last) > s.locks.Config().MaxConnIdleTime {
		_ = conn.Conn().Close(ctx) // Release removes a closed connection from the pool
	}
}

// holdLock calls send now and then, which sends a statement, so that the server does not end
// the idle transaction, until ctx ends. It calls lost when it returns: when the transaction is
// gone, and when ctx has ended.
func (s *server) holdLock(
	ctx context.Context, lost func(), conn *pgxpool.Conn, send func(context.Context, *pgxpool.Conn) error,
) {
	defer lost()
	ticker := time.NewTicker(s.options.LockTimeout / 5)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if !s.touch(ctx, conn, send) {
				return
			}
		}
	}
}

// touch calls send, and reports whether the server has answered before it would end the
// transaction as idle (Options.LockTimeout).
func (s *server) touch(ctx context.Context, conn *pgxpool.Conn, send func(context.Context, *pgxpool.Conn) error) bool {
	ctx, cancel := context.WithTimeout(ctx, s.options.LockTimeout*3/5)
	defer cancel()
	return send(ctx, conn) == nil
}

func sendTouch(ctx context.Context, conn *pgxpool.Conn) error {
	_, err := conn.Exec(ctx, touch)
	return err
}

// Notify implements sqlstore.Shared. While no other process uses the database it sends
// nothing: a hint is a transaction of its own, and wakes this process's own listener.
func (d *Driver) Notify(ctx context.Context, revision int64) error {
	if d.isAlone.Load() {
		return nil
	}
	return d.readFrom(ctx, d.server.feedPool(),
		func(ctx context.Context, conn *pgxpool.Conn, _ *watchdog, _ lastSeen) error {
			_, err := conn.Exec(ctx, notify, strconv.FormatInt(revision, 10))
			return err
		})
}

// reconnectPause is how long Listen waits before it connects again.
const reconnectPause = time.Second

// Listen implements sqlstore.Shared on a connection of its own. It returns nil when ctx
// ends, and an error only if connecting again can't help.
func (d *Driver) Listen(ctx context.Context, f func(revision int64)) error {
	for {
		err := d.server.listen(ctx, f)
		if ctx.Err() != nil {
			return nil
		}
		if err := d.server.translate(err); !errors.Is(err, sqlstore.ErrUnavailable) {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reconnectPause):
		}
	}
}

func (s *server) listen(ctx context.Context, f func(revision int64)) error {
	conn, err := s.startListening(ctx)
	if err != nil {
		return err
	}
	defer s.stopListening(ctx, conn)
	f(0)
	for {
		n, err := s.nextHint(ctx, conn)
		if err != nil {
			return err
		}
		// Another program has sent a payload that is not a number. It counts as a hint
		// without a revision.
		revision, err := strconv.ParseInt(n.Payload, 10, 64)
		if err != nil {
			revision = 0
		}
		f(revision)
	}
}

func (s *server) startListening(ctx context.Context) (*pgx.Conn, error) {
	config := s.config.Copy()
	if err := s.refresh(ctx, config); err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config) // the connection string has a timeout for this
	if err != nil {
		return nil, err
	}
	asking, cancel := context.WithTimeout(ctx, s.options.ReadTimeout)
	defer cancel()
	var channel string
	err = conn.QueryRow(asking, selectChannel).Scan(&channel)
	if err == nil {
		_, err = conn.Exec(asking, `LISTEN `+pgx.Identifier{channel}.Sanitize())
	}
	if err != nil {
		s.stopListening(ctx, conn)
		return nil, err
	}
	return conn, nil
}

func (s *server) stopListening(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.options.ReadTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}

// listenPause is how long Listen waits for a notification before it pings the server.
const listenPause = 15 * time.Second

// nextHint waits for a notification. It fails when the server does not answer a ping.
func (s *server) nextHint(ctx context.Context, conn *pgx.Conn) (*pgconn.Notification, error) {
	for {
		n, err := awaitNotification(ctx, conn, listenPause)
		if err == nil || ctx.Err() != nil || conn.IsClosed() {
			return n, err
		}
		asking, cancel := context.WithTimeout(ctx, s.options.ReadTimeout)
		_, err = conn.Exec(asking, touch)
		cancel()
		if err != nil {
			return nil, err
		}
	}
}

func awaitNotification(ctx context.Context, conn *pgx.Conn, timeout time.Duration) (*pgconn.Notification, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return conn.WaitForNotification(ctx)
}

// Maintain implements sqlstore.Driver. It holds the in-use lock in shared mode, which
// keeps "byre migrate down" and Load from a database that a process serves. When the lock is
// lost, because the server was restarted for example, it takes the lock again. Like all advisory
// locks of byre it belongs to a transaction, which a pooler keeps on one session.
func (d *Driver) Maintain(ctx context.Context) error {
	for {
		d.holdUse(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reconnectPause):
		}
	}
}

// holdUse holds the in-use lock until it is lost or ctx ends. Meanwhile it notes whether other
// processes hold it too: while none does, Notify sends nothing. A process that starts gets no
// hints until the others have noticed it, a fifth of Options.LockTimeout later at most. Until
// then it polls, as for every hint that is lost.
func (d *Driver) holdUse(ctx context.Context) {
	conn, locked, err := d.server.tryLock(ctx, tryShare, migrations.UseLock)
	if conn != nil {
		defer d.server.unlock(ctx, conn)
	}
	if err != nil || !locked {
		return
	}
	defer d.isAlone.Store(false)
	d.server.holdLock(ctx, func() {}, conn, func(ctx context.Context, conn *pgxpool.Conn) error {
		var users int64
		err := conn.QueryRow(ctx, countUsers).Scan(&users)
		d.isAlone.Store(err == nil && users == 1)
		return err
	})
}
