package postgres

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"byre/migrations/dbserver"
)

// adoptServer begins an epoch where the present one began on another server or on an
// earlier timeline of it. Open calls it: a process that has just started has seen no
// change, and so could not find that some are lost.
//
// Invariant: the epoch ends with the lineage of the server that it began on, once a
// process has opened the store there. A process that runs during a failover begins an
// epoch only where commits are lost; the next one that starts can not know that, and
// begins one in any case. Else clients would go on at revisions that the new server gives
// to other changes.
func (d *Driver) adoptServer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.options.LockTimeout+d.options.CommitTimeout)
	defer cancel()
	conn, err := d.writer(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	lineage, err := d.lineage(ctx, conn)
	if err != nil || lineage == "" {
		return d.translate(err)
	}
	var epoch string
	if err := conn.QueryRow(ctx, selectEpoch).Scan(&epoch); err != nil {
		return d.translate(err)
	}
	switch {
	case strings.HasSuffix(epoch, lineage):
		return nil
	case !strings.Contains(epoch, "@"):
		// A new store, or one of an earlier release.
		_, err := conn.Exec(ctx, markEpoch, epoch, lineage)
		return d.translate(err)
	}
	revision, err := d.changeEpoch(ctx, conn, moveEpoch, epoch, epochGap, lineage)
	if err == nil && revision != 0 {
		d.options.Logger.Warn("postgres: the store was moved to another server, or a standby took over, and no process that runs "+
			"since before can tell that no commits are lost; a new epoch begins: watches end with 410 and clients list again",
			"server", dbserver.Address(d.config), "epoch", epoch, "revision", revision)
	}
	return err
}

// lineage is the text that an epoch ends with; it is empty where the server does not tell,
// as some services that run PostgreSQL for others do not.
func (d *Driver) lineage(ctx context.Context, conn *pgxpool.Conn) (lineage string, err error) {
	err = conn.QueryRow(ctx, selectLineage).Scan(&lineage)
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		d.options.Logger.Warn("postgres: the server does not tell its timeline: when all processes are restarted during a failover "+
			"that loses commits, they do not notice", "server", dbserver.Address(d.config), "error", refused.Message)
		return "", nil
	}
	return lineage, err
}

// changeEpoch runs a statement that begins an epoch and returns its first revision, or 0
// where it does not.
func (d *Driver) changeEpoch(ctx context.Context, conn *pgxpool.Conn, statement string, arguments ...any) (revision int64, err error) {
	var b pgx.Batch
	b.Queue(begin)
	b.Queue(configure, milliseconds(d.options.LockTimeout), true)
	b.Queue(lock, milliseconds(d.options.CommitTimeout/2))
	b.Queue(statement, arguments...).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&revision)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // revision stays 0
		}
		return err
	})
	b.Queue(unlimited)
	b.Queue(commit)
	return revision, d.translate(conn.SendBatch(ctx, &b).Close())
}
