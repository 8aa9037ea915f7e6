package postgres

import (
	"context"
	"time"

	"byre/migrations"
)

// Maintain implements sqlstore.Maintainer: it shares the lock that keeps "byre migrate
// down" from a database that is in use, as long as the server can be reached. As
// all locks by name it is a transaction's, which a pooler keeps on one session.
func (d *Driver) Maintain(ctx context.Context) error {
	for {
		d.use(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reconnectPause):
		}
	}
}

// use shares the lock until it is lost or ctx ends.
func (d *Driver) use(ctx context.Context) {
	conn, locked, err := d.tryLock(ctx, tryShare, migrations.UseLock)
	if conn != nil {
		defer d.unlock(ctx, conn)
	}
	if err == nil && locked {
		d.holdLock(ctx, func() {}, conn)
	}
}
