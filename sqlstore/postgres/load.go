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

// Load fills a database with a snapshot, in one transaction. The database must be empty, or
// have the schema and no data. Load fails with sqlstore.ErrNotEmpty if it holds data, with a
// *migrations.InUseError if a process serves it, and with sqlstore.ErrBroken if the snapshot
// is broken.
func Load(ctx context.Context, dsn string, s sqlstore.Snapshot) error {
	t, err := connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer t.close()
	schema, err := t.schema()
	if err != nil {
		return err
	}
	if schema.Version > 0 {
		// Load does not migrate a database with an older schema: it may hold data, and
		// Load would then change its schema and refuse it.
		err = migrations.Check(migrations.Postgres, schema)
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
	// The rollback waits for the server's answer. By then the server has released the
	// locks, so that the next process does not find the store in use.
	defer t.rollback(tx)
	if err := t.lock(tx); err != nil {
		return err
	}
	ids := sqlstore.NewNumbering(&s.Header)
	if err := copyRows(t, tx, "current_objects", objectColumns, s.Objects, ids, objectValues); err != nil {
		return err
	}
	if err := copyRows(t, tx, "undo_log", undoColumns, s.Changes, ids, undoValues); err != nil {
		return err
	}
	if err := copyResources(t, tx, ids); err != nil {
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
	// The server may answer only when a synchronous standby has received everything.
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

// lock locks the tables until the transaction ends. It fails if a process uses the store or
// if the store holds data.
func (t *transfer) lock(tx pgx.Tx) error {
	if _, err := tx.Exec(t.ctx, configureLoad, "10000"); err != nil {
		return t.explain(err)
	}
	if err := t.checkIdle(); err != nil { // the transaction keeps the in-use lock
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

// copyRows sends rows by COPY. The watchdog's timer does not run while the next row is made.
func copyRows[T any](t *transfer, tx pgx.Tx, table string, columns []string, rows iter.Seq2[*T, error], ids *sqlstore.Numbering, values func(*T, *sqlstore.Numbering) []any) error {
	next, stop := iter.Pull2(rows)
	defer stop()
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
		return values(row, ids), nil
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

// copyResources inserts the resources.
func copyResources(t *transfer, tx pgx.Tx, ids *sqlstore.Numbering) error {
	var rows [][]any
	_ = ids.All(func(of sqlstore.Resource, id int64, r sqlstore.Retained) error {
		rows = append(rows, []any{int32(id), of.Group, of.Resource, of.Owner.String(), r.Compacted, int64(r.RetainedFor / time.Second)})
		return nil
	})
	_, err := tx.CopyFrom(t.ctx, pgx.Identifier{"resources"}, resourceColumns, pgx.CopyFromRows(rows))
	return t.explain(err)
}

func objectValues(r *sqlstore.ObjectRow, ids *sqlstore.Numbering) []any {
	return []any{
		int32(ids.ID(r.Of())), r.Namespace, r.Name, r.UID, r.Generation, r.Created, r.Revision, r.Time,
		r.Author.Verb, r.Author.Subresource, r.Author.Manager, r.Author.User, r.Author.RealUser, r.Encoding, nullTime(r.Expires), sqlstore.Text(r.Value),
	}
}

func undoValues(r *sqlstore.ChangeRow, ids *sqlstore.Numbering) []any {
	var form, value any
	if r.Op != sqlstore.Create {
		form, value = r.Encoding, sqlstore.Text(r.Value)
	}
	return []any{
		r.Revision, r.Time, string(r.Op), r.Author.Verb, r.Author.Subresource, r.Author.Manager, r.Author.User, r.Author.RealUser, r.Author.AuditID,
		int32(ids.ID(r.Of())), r.Namespace, r.Name, r.UID, r.Replaces, r.Created, form, nullTime(r.Expires), value,
	}
}

// nullTime returns NULL for the zero time, which means never.
func nullTime(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}
