package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"byre/sqlstore"
)

// Histories implements sqlstore.Driver.
func (d *Driver) Histories(ctx context.Context) (histories []sqlstore.History, err error) {
	err = d.snapshot(ctx, d.server.reads, nil, "", func(b *pgx.Batch, _ *sqlstore.State, _ *watchdog) {
		b.Queue(selectHistories).Query(func(rows pgx.Rows) (err error) {
			histories, err = pgx.CollectRows(rows, scanHistory)
			return err
		})
	})
	return histories, err
}

func scanHistory(row pgx.CollectableRow) (h sqlstore.History, err error) {
	var first *int64
	var at *time.Time
	var seconds int64
	err = row.Scan(&h.Group, &h.Resource.Resource, &h.Owner, &h.ResumableAfter, &h.CompleteAfter, &seconds, &first, &at)
	h.RetainedFor = time.Duration(seconds) * time.Second
	if err == nil && first != nil {
		h.First, h.FirstTime = *first, at.UTC()
	}
	return h, err
}

// Compacted implements sqlstore.Driver.
func (d *Driver) Compacted(ctx context.Context, of sqlstore.Resource) (_ int64, err error) {
	var last *sqlstore.State
	err = d.snapshot(ctx, d.server.reads, &of, selectCompacted, func(_ *pgx.Batch, state *sqlstore.State, _ *watchdog) {
		last = state
	})
	if err != nil {
		return 0, err
	}
	return last.Compacted, nil
}

// RevisionAt implements sqlstore.Driver.
func (d *Driver) RevisionAt(ctx context.Context, moment time.Time) (revision int64, err error) {
	err = d.snapshot(ctx, d.server.reads, nil, "", func(b *pgx.Batch, _ *sqlstore.State, _ *watchdog) {
		b.Queue(selectRevisionAt, formatTime(moment)).QueryRow(func(row pgx.Row) error { return row.Scan(&revision) })
	})
	return revision, err
}

// SetRetainedFor implements sqlstore.Driver.
func (d *Driver) SetRetainedFor(ctx context.Context, ages map[sqlstore.Resource]time.Duration) error {
	var resources []sqlstore.Resource
	var seconds []int64
	for of, age := range ages {
		resources, seconds = append(resources, of), append(seconds, int64(age/time.Second))
	}
	return d.read(ctx, func(ctx context.Context, conn *pgxpool.Conn, _ *watchdog, _ lastSeen) error {
		_, err := conn.Exec(ctx, updateRetainedFor, append(names(resources), seconds)...)
		return err
	})
}

// Notes implements sqlstore.Driver.
func (d *Driver) Notes(ctx context.Context, prefix string) (map[string]string, error) {
	notes := map[string]string{}
	err := d.read(ctx, func(ctx context.Context, conn *pgxpool.Conn, _ *watchdog, _ lastSeen) error {
		rows, _ := conn.Query(ctx, selectNotes, prefix, sqlstore.AfterNotes(prefix)) // ForEachRow returns the error
		var name, value string
		_, err := pgx.ForEachRow(rows, []any{&name, &value}, func() error {
			notes[name] = value
			return nil
		})
		return err
	})
	return notes, err
}

// SetNote implements sqlstore.Driver.
func (d *Driver) SetNote(ctx context.Context, name, old, value string) (done bool, err error) {
	statement := updateNote
	switch {
	case old == "":
		statement = insertNote
	case value == "":
		statement = deleteNote
	}
	isSent := false
	err = d.read(ctx, func(ctx context.Context, conn *pgxpool.Conn, _ *watchdog, _ lastSeen) error {
		isSent = true
		tag, err := conn.Exec(ctx, statement, name, old, value)
		done = err == nil && tag.RowsAffected() == 1
		return err
	})
	if isSent && errors.Is(err, sqlstore.ErrUnavailable) {
		err = fmt.Errorf("%w: %s", sqlstore.ErrUnknown, err.Error())
	}
	return done, err
}

// CountChanges implements sqlstore.Driver.
func (d *Driver) CountChanges(
	ctx context.Context, of sqlstore.Resource, upTo, limit int64,
) (count, oldest int64, err error) {
	err = d.read(ctx, func(ctx context.Context, conn *pgxpool.Conn, w *watchdog, _ lastSeen) error {
		w.pause() // ctx bounds it; it reads as many entries of an index as there are changes
		return conn.QueryRow(ctx, countChanges, of.Group, of.Resource, of.Owner.String(), upTo, limit).Scan(&count, &oldest)
	})
	return count, oldest, err
}

// DeleteHistory implements sqlstore.Driver. Its transaction takes the writers' lock last, and so
// holds it only while it commits. It takes none unless it raises the compacted revision of the store.
//
// Invariant: a deletion changes only a store that holds the driver's last seen change. Its own
// transaction checks that. Otherwise a deletion on a server that has lost commits would
// move the revision past the lost ones, and no process could notice the loss.
func (d *Driver) DeleteHistory(
	ctx context.Context, deletion sqlstore.Deletion,
) (deleted int, waited time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.server.options.LockTimeout+d.server.options.CommitTimeout)
	defer cancel()
	err = d.read(ctx, func(ctx context.Context, conn *pgxpool.Conn, w *watchdog, before lastSeen) error {
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			var o observation
			if err := tx.QueryRow(ctx, selectState, before.revision).Scan(o.columns()...); err != nil {
				return err
			}
			if err := d.check(before, &o); err != nil {
				return err
			}
			w.pause() // ctx bounds the time of the deletion
			deletion.UpTo = min(deletion.UpTo, o.Revision)
			deleted, waited, err = deleteChanges(ctx, tx, deletion, d.server.options.LockTimeout)
			return err
		})
	})
	if err != nil {
		return 0, 0, err
	}
	return deleted, waited, nil
}

// deleteChanges makes a deletion in a transaction, which waits for a lock no longer than a time-out.
func deleteChanges(
	ctx context.Context, tx pgx.Tx, deletion sqlstore.Deletion, timeout time.Duration,
) (deleted int, waited time.Duration, err error) {
	group, resource, owner := deletion.Of.Group, deletion.Of.Resource, deletion.Of.Owner.String()
	var before *string
	if !deletion.Before.IsZero() {
		text := formatTime(deletion.Before)
		before = &text
	}
	var b pgx.Batch
	var last int64
	b.Queue(configureCompact, milliseconds(timeout))
	b.Queue(deleteHistory, group, resource, owner, deletion.UpTo, before,
		deletion.Limit).QueryRow(func(row pgx.Row) error {
		return row.Scan(&last, &deleted)
	})
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return 0, 0, err
	}
	if before == nil && deleted < deletion.Limit {
		last = deletion.UpTo
	}
	if last == 0 {
		return 0, 0, nil
	}
	start := time.Now()
	if _, err := tx.Exec(ctx, updateCompacted, last); err != nil { // may wait for the writers' lock
		return 0, 0, err
	}
	waited = time.Since(start)
	// A new epoch updates both tables in this order too.
	_, err = tx.Exec(ctx, updateHistory, group, resource, owner, last)
	return deleted, waited, err
}

// Usage implements sqlstore.Driver.
func (d *Driver) Usage(ctx context.Context) (usage sqlstore.Usage, err error) {
	err = d.snapshot(ctx, d.server.reads, nil, "", func(b *pgx.Batch, state *sqlstore.State, w *watchdog) {
		b.Queue(allowScan).Exec(func(pgconn.CommandTag) error {
			// The next statement scans a whole table and takes long. ctx bounds it, and no client's request waits for it.
			w.pause()
			return nil
		})
		b.Queue(selectUsage).Query(func(rows pgx.Rows) (err error) {
			defer w.expect()
			usage.Revision = state.Revision
			usage.Resources, err = pgx.AppendRows(usage.Resources, rows, pgx.RowToStructByPos[sqlstore.ResourceUsage])
			return err
		})
	})
	return usage, err
}

// sizeTimeout bounds one measurement of the database. The server looks at every file of the
// tables. On a slow disk that takes seconds, which does not mean that the server is silent.
const sizeTimeout = time.Minute

// Used implements sqlstore.Driver. PostgreSQL does not tell how much of its files can be
// reused, so all of them count.
func (d *Driver) Used(ctx context.Context) (int64, error) { return d.Size(ctx) }

// Size implements sqlstore.Driver: the tables of the schema, and their indexes.
func (d *Driver) Size(ctx context.Context) (size int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, sizeTimeout)
	defer cancel()
	err = d.read(ctx, func(ctx context.Context, conn *pgxpool.Conn, w *watchdog, _ lastSeen) error {
		w.pause() // ctx bounds it; a slow answer is no reason to drop the connections
		return conn.QueryRow(ctx, selectSize).Scan(&size)
	})
	return size, err
}
