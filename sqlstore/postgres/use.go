package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"byre/migrations"
)

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
