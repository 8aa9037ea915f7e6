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

// adoptServer begins a new epoch if the store's epoch began on another server, or on an
// earlier timeline of this one. Open calls it, because a process that has just started has
// no position and can't notice that commits are lost.
//
// Invariant: once a process has opened the store, the text of its epoch ends with the lineage
// of the server on which the epoch began. adoptServer and startEpoch keep it. A process that
// runs during a failover begins an epoch only if commits are lost. A process that starts
// after the failover can't know whether commits are lost, and therefore always begins one.
// Otherwise clients would continue at revisions that the new server gives to other changes.
func (d *Driver) adoptServer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.options.LockTimeout+d.options.CommitTimeout)
	defer cancel()
	conn, err := d.acquireWriter(ctx)
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
		// The store is new, or an earlier release wrote its epoch.
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

// lineage returns the lineage of the server (see selectLineage), with which the text of an
// epoch ends. It is empty if the role may not read it, as at some cloud providers.
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

// changeEpoch executes newEpoch or moveEpoch under the writers' lock. It returns the first
// revision of the new epoch, or 0 if the statement began none.
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
