package postgres

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"byre/migrations"
	"byre/sqlstore"
)

// Load fills a database with a snapshot, in one transaction. The database may be empty,
// or hold a store that never held anything and that no process uses; any other is
// ErrNotEmpty or a *migrations.InUseError.
func Load(ctx context.Context, dsn string, s sqlstore.Snapshot) error {
	t, err := connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer t.close()
	version, err := t.schema()
	if err != nil {
		return err
	}
	if version > 0 {
		// A database that is going to be refused because it holds data is not migrated
		// first.
		err = migrations.Check(migrations.Postgres, version)
	} else {
		t.watchdog.pause()
		_, err = migrations.Up(t.ctx, dsn)
		t.watchdog.expect()
	}
	if err != nil {
		return err
	}
	return t.load(s.Checked())
}

func (t *transfer) load(s sqlstore.Snapshot) error {
	tx, err := t.conn.Begin(t.ctx)
	if err != nil {
		return t.explain(err)
	}
	// The rollback waits until the server has released the locks, so that the next
	// process does not find the store in use.
	defer t.rollback(tx)
	if err := t.lock(tx); err != nil {
		return err
	}
	nextObject, stop := iter.Pull2(s.Objects)
	defer stop()
	if err := copyRows(t, tx, "objects", objectColumns, nextObject, objectValues); err != nil {
		return err
	}
	nextChange, stop := iter.Pull2(s.Changes)
	defer stop()
	archived, rest := split(nextChange, func(r *sqlstore.ChangeRow) bool { return r.Revision <= s.Compacted })
	if err := copyRows(t, tx, "archive", undoColumns, archived, undoValues); err != nil {
		return err
	}
	if err := copyRows(t, tx, "changes", undoColumns, rest, undoValues); err != nil {
		return err
	}
	if _, err := tx.Exec(t.ctx, setStore, s.Revision, s.Compacted, s.Epoch); err != nil {
		return t.explain(err)
	}
	// Without statistics the plans of the filled tables would be wrong until the next
	// autovacuum.
	t.watchdog.expect()
	if _, err := tx.Exec(t.ctx, analyze); err != nil {
		return t.explain(err)
	}
	// The answer may wait until a synchronous standby has received everything.
	t.watchdog.pause()
	if err := tx.Commit(t.ctx); err != nil {
		return fmt.Errorf("commit: %w", t.explain(err))
	}
	return nil
}

// rollback ends a transaction that is not committed.
func (t *transfer) rollback(tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), 5*time.Second)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// lock locks the store against other processes. It fails if the store is in use or holds
// data.
func (t *transfer) lock(tx pgx.Tx) error {
	if _, err := tx.Exec(t.ctx, configureLoad, "10000"); err != nil {
		return t.explain(err)
	}
	if err := t.checkIdle(); err != nil { // the transaction keeps the lock
		return err
	}
	if _, err := tx.Exec(t.ctx, lockStore); err != nil {
		return t.explain(err)
	}
	var rows int64
	if err := tx.QueryRow(t.ctx, countData).Scan(&rows); err != nil {
		return t.explain(err)
	}
	if rows > 0 {
		return fmt.Errorf("%s: %w", t.name(), sqlstore.ErrNotEmpty)
	}
	return nil
}

// puller returns the next row, as what iter.Pull2 returns does.
type puller[T any] func() (row *T, err error, ok bool)

// split divides rows: first yields those at the beginning for which belongs is true, rest,
// when first has ended, the others.
func split[T any](next puller[T], belongs func(*T) bool) (first, rest puller[T]) {
	var held *T
	first = func() (*T, error, bool) {
		row, err, ok := next()
		if ok && err == nil && !belongs(row) {
			held = row
			return nil, nil, false
		}
		return row, err, ok
	}
	rest = func() (*T, error, bool) {
		if row := held; row != nil {
			held = nil
			return row, nil, true
		}
		return next()
	}
	return first, rest
}

// copyRows sends rows by COPY. The watchdog bounds the time of the server, not that of
// the source of the rows.
func copyRows[T any](t *transfer, tx pgx.Tx, table string, columns []string, next puller[T], values func(*T) []any) error {
	t.watchdog.pause()
	var source error
	_, err := tx.CopyFrom(t.ctx, pgx.Identifier{table}, columns, pgx.CopyFromFunc(func() ([]any, error) {
		t.watchdog.pause()
		defer t.watchdog.expect()
		row, err, ok := next()
		if !ok {
			return nil, nil
		}
		if err != nil {
			source = err
			return nil, err
		}
		return values(row), nil
	}))
	t.watchdog.expect()
	var server *pgconn.PgError
	switch {
	case source != nil:
		return source
	case errors.As(err, &server) && server.Code == codeDuplicate:
		return fmt.Errorf("%w: two objects have the same key", sqlstore.ErrBroken)
	}
	return t.explain(err)
}

func objectValues(r *sqlstore.ObjectRow) []any {
	return []any{
		r.Group, r.Resource, r.Owner.String(), r.Namespace, r.Name, r.UID, r.Created, r.Revision,
		r.Time, r.Verb, r.User, r.Form, nullTime(r.Expires), text(r.Value),
	}
}

func undoValues(r *sqlstore.ChangeRow) []any {
	var form, value any
	if r.Op != sqlstore.Create {
		form, value = r.Form, text(r.Value)
	}
	return []any{
		r.Revision, r.Time, string(r.Op), r.Author.Verb, r.Author.User, r.Author.AuditID,
		r.Group, r.Resource, r.Owner.String(), r.Namespace, r.Name, r.UID, r.Replaces, r.Created,
		form, nullTime(r.Expires), value,
	}
}

// nullTime is NULL for never.
func nullTime(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}
