package postgres

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"byre/migrations"
	"byre/sqlstore"
)

// transferTimeout is how long a transfer waits for the server's next answer. The server may
// count a whole table before the first row.
const transferTimeout = time.Minute

// ReadSnapshot calls read with a snapshot of the whole store, which it reads in one
// REPEATABLE READ transaction. The snapshot is valid until read returns. Processes may serve
// the store meanwhile. As during a pg_dump, the server can't remove dead rows until
// ReadSnapshot returns.
func ReadSnapshot(ctx context.Context, dsn string, read func(sqlstore.Snapshot) error) error {
	return readSnapshot(ctx, dsn, (*transfer).checkSchema, read)
}

// errNotLeft means that the store may lack commits that clients have seen; see Driver.followInstance.
var errNotLeft = errors.New(
	"the database is not the one that its epoch began on, because a standby took over, or it was restored or moved: " +
		"start byre on it and stop it, or use \"byre restore --from\"")

// ReadIdle is ReadSnapshot of a store that no process serves. It fails with a
// *migrations.InUseError if a process serves the store when it begins, with errWritten if one has
// written to it when read has returned, and with errNotLeft if a start would begin a new epoch.
func ReadIdle(ctx context.Context, dsn string, read func(sqlstore.Snapshot) error) error {
	return readSnapshot(ctx, dsn, func(t *transfer) error {
		if err := t.checkSchema(); err != nil {
			return err
		}
		if err := t.checkIdle(); err != nil {
			return err
		}
		return t.checkLineage()
	}, func(s sqlstore.Snapshot) error {
		if err := read(s); err != nil {
			return err
		}
		return ReadSnapshot(ctx, dsn, func(now sqlstore.Snapshot) error {
			if now.Epoch != s.Epoch || now.Revision != s.Revision {
				return errWritten
			}
			return nil
		})
	})
}

// errWritten means that a process was started during ReadIdle.
var errWritten = errors.New(
	"byre was started on the database meanwhile and has written to it, which the copy lacks: do not use the copy, stop byre and begin anew")

func (t *transfer) checkLineage() error {
	var f finding
	err := pgx.BeginFunc(t.ctx, t.conn, func(tx pgx.Tx) (err error) {
		f, _, err = findOrigin(t.ctx, tx)
		return err
	})
	f.holds = true // there is no last seen change
	if err == nil && !f.isSafe() {
		return fmt.Errorf("%s: %w", t.name(), errNotLeft)
	}
	return t.explain(err)
}

func readSnapshot(
	ctx context.Context, dsn string, check func(*transfer) error, read func(sqlstore.Snapshot) error,
) error {
	t, err := connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer t.close()
	if err := check(t); err != nil {
		return err
	}
	tx, err := t.conn.BeginTx(t.ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return t.explain(err)
	}
	if _, err := tx.Exec(t.ctx, configureScan); err != nil {
		return t.explain(err)
	}
	s := sqlstore.Snapshot{
		Changes: rowsOf(t, tx, selectUndo, scanChangeRow),
		Get: func(_ context.Context, key sqlstore.Key) (sqlstore.Record, int64, error) {
			t.watchdog.expect()
			defer t.watchdog.pause()
			record, o, err := readRecord(tx.QueryRow(t.ctx, selectObject, objectArguments(0, key)...), key)
			if err == nil && record.Revision == 0 {
				return record, o.Revision, sqlstore.ErrNotFound
			}
			return record, o.Revision, t.explain(err)
		},
	}
	if err := tx.QueryRow(t.ctx, selectHeader).Scan(&s.Revision, &s.Compacted, &s.CompleteAfter, &s.Epoch, &s.Time,
		&s.ObjectCount); err != nil {
		return t.explain(err)
	}
	s.Time = s.Time.UTC()
	rows, _ := tx.Query(t.ctx, selectHistories) // CollectRows returns the error
	histories, err := pgx.CollectRows(rows, scanHistory)
	if err != nil {
		return t.explain(err)
	}
	s.SetRetained(histories)
	s.Objects = objectsOf(t, tx, histories)
	t.watchdog.pause()
	return read(s)
}

// objectsOf returns the objects of all resources in key order, resource by resource: of a join
// with the table resources the server would sort all rows.
func objectsOf(t *transfer, tx pgx.Tx, histories []sqlstore.History) iter.Seq2[*sqlstore.ObjectRow, error] {
	slices.SortFunc(histories, func(a, b sqlstore.History) int { return a.Resource.Compare(b.Resource) })
	return func(yield func(*sqlstore.ObjectRow, error) bool) {
		for _, h := range histories {
			of := h.Resource
			scan := func(rows pgx.Rows) (*sqlstore.ObjectRow, error) { return scanObjectRow(rows, of) }
			for row, err := range rowsOf(t, tx, selectObjects, scan, of.Group, of.Resource, of.Owner.String()) {
				if !yield(row, err) || err != nil {
					return
				}
			}
		}
	}
}

// transfer is a connection that reads or writes a whole store. Its context ends when the
// server does not answer for longer than transferTimeout.
type transfer struct {
	//nolint:containedctx // the watchdog cancels it, and it ends with the connection.
	ctx      context.Context
	cancel   context.CancelCauseFunc
	conn     *pgx.Conn
	watchdog *watchdog
}

func connect(ctx context.Context, dsn string) (*transfer, error) {
	config, err := migrations.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	// QueryExecModeExec uses no prepared statements, which a pooler in transaction mode may
	// lose.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	t := &transfer{}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	if t.conn, err = migrations.Connect(t.ctx, config.ConnConfig); err != nil {
		t.cancel(nil)
		return nil, migrations.Explain(config.ConnConfig, err)
	}
	t.watchdog = &watchdog{timeout: transferTimeout, timer: time.AfterFunc(transferTimeout, func() {
		t.cancel(errNoAnswer)
	})}
	return t, nil
}

// close closes the connection, which ends a transaction that is not committed.
func (t *transfer) close() {
	t.watchdog.pause()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), 5*time.Second)
	defer cancel()
	_ = t.conn.Close(ctx)
	t.cancel(nil)
}

func (t *transfer) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(context.Cause(t.ctx), errNoAnswer):
		err = context.DeadlineExceeded
	case t.ctx.Err() != nil:
		return t.ctx.Err()
	}
	return migrations.Explain(t.conn.Config(), err)
}

// checkSchema fails unless the database has this program's schema.
func (t *transfer) checkSchema() error {
	schema, err := t.schema()
	if err != nil {
		return err
	}
	return migrations.Check(migrations.Postgres, schema)
}

const (
	// idleTimeLimit is how long the server may take to end the session of a process that
	// has ended, and to release its locks.
	idleTimeLimit = 2 * time.Second
	// idlePause is the time between two attempts to take the in-use lock.
	idlePause = 50 * time.Millisecond
)

// checkIdle fails with a *migrations.InUseError if a process uses the store. It tries to take
// the in-use lock. In a transaction the lock is held until the end of the transaction, and
// otherwise only until the end of the statement.
func (t *transfer) checkIdle() error {
	for range idleTimeLimit / idlePause {
		var free bool
		if err := t.conn.QueryRow(t.ctx, tryLock, migrations.UseLock).Scan(&free); err != nil || free {
			return t.explain(err)
		}
		select {
		case <-t.ctx.Done():
			return t.explain(t.ctx.Err())
		case <-time.After(idlePause):
		}
	}
	return &migrations.InUseError{Path: t.name()}
}

// name returns the name of the database in messages to the operator.
func (t *transfer) name() string {
	return fmt.Sprintf("%s at %s", migrations.DatabaseName(t.conn.Config()), migrations.Address(t.conn.Config()))
}

// schema returns the schema of the database; zero if there is none.
func (t *transfer) schema() (migrations.Schema, error) {
	schema, err := migrations.PostgresSchema(t.ctx, t.conn)
	if t.ctx.Err() != nil {
		err = t.explain(err)
	}
	return schema, err
}

// rowsOf returns the rows of a query, which it reads one at a time. The watchdog's timer does
// not run while the caller uses a row.
func rowsOf[T any](
	t *transfer, tx pgx.Tx, query string, scan func(pgx.Rows) (*T, error), arguments ...any,
) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		t.watchdog.expect()
		defer t.watchdog.pause()
		rows, err := tx.Query(t.ctx, query, arguments...)
		if err != nil {
			yield(nil, t.explain(err))
			return
		}
		defer rows.Close()
		for rows.Next() {
			t.watchdog.pause()
			row, err := scan(rows)
			if err != nil {
				yield(nil, fmt.Errorf("read a row: %w", err))
				return
			}
			if !yield(row, nil) {
				return
			}
			t.watchdog.expect()
		}
		if err := rows.Err(); err != nil {
			yield(nil, t.explain(err))
		}
	}
}

func scanObjectRow(rows pgx.Rows, of sqlstore.Resource) (*sqlstore.ObjectRow, error) {
	r := &sqlstore.ObjectRow{}
	r.Group, r.Resource, r.Owner = of.Group, of.Resource, of.Owner
	var value string
	var expires *time.Time
	if err := rows.Scan(&r.Namespace, &r.Name, &r.UID, &r.Generation, &r.Created, &r.Revision,
		&r.Time, &r.Author.Verb, &r.Author.Subresource, &r.Author.Manager, &r.Author.User, &r.Author.RealUser, &r.Encoding,
		&expires, &value); err != nil {
		return nil, err
	}
	r.Time, r.Expires, r.Value = r.Time.UTC(), expiry(expires), sqlstore.Bytes(value)
	return r, nil
}

func scanChangeRow(rows pgx.Rows) (*sqlstore.ChangeRow, error) {
	r := &sqlstore.ChangeRow{}
	var op string
	var encoding, value *string
	var expires *time.Time
	if err := rows.Scan(&r.Revision, &r.Time, &op, &r.Author.Verb, &r.Author.Subresource, &r.Author.Manager,
		&r.Author.User, &r.Author.RealUser, &r.Author.AuditID,
		&r.Group, &r.Resource, &r.Owner, &r.Namespace, &r.Name, &r.UID, &r.Replaces, &r.Created,
		&encoding, &expires, &value); err != nil {
		return nil, err
	}
	r.Op, r.Time, r.Expires = sqlstore.Op(op), r.Time.UTC(), expiry(expires)
	if encoding != nil {
		r.Encoding = *encoding
	}
	if value != nil {
		r.Value = sqlstore.Bytes(*value)
	}
	return r, nil
}

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
	if _, err := tx.Exec(t.ctx, setStore, s.Revision, s.Compacted, s.CompleteAfter, s.Epoch); err != nil {
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
func copyRows[T any](
	t *transfer, tx pgx.Tx, table string, columns []string, rows iter.Seq2[*T, error], ids *sqlstore.Numbering,
	values func(*T, *sqlstore.Numbering) []any,
) error {
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
		rows = append(rows,
			[]any{int32(id), of.Group, of.Resource, of.Owner.String(), r.ResumableAfter, r.CompleteAfter,
				int64(r.RetainedFor / time.Second)})
		return nil
	})
	_, err := tx.CopyFrom(t.ctx, pgx.Identifier{"resources"}, resourceColumns, pgx.CopyFromRows(rows))
	return t.explain(err)
}

func objectValues(r *sqlstore.ObjectRow, ids *sqlstore.Numbering) []any {
	return []any{
		int32(ids.ID(r.Of())), r.Namespace, r.Name, r.UID, r.Generation, r.Created, r.Revision, r.Time,
		r.Author.Verb, r.Author.Subresource, r.Author.Manager, r.Author.User, r.Author.RealUser, r.Encoding,
		nullTime(r.Expires), sqlstore.Text(r.Value),
	}
}

func undoValues(r *sqlstore.ChangeRow, ids *sqlstore.Numbering) []any {
	var encoding, value any
	if r.Op != sqlstore.Create {
		encoding, value = r.Encoding, sqlstore.Text(r.Value)
	}
	return []any{
		r.Revision, r.Time, string(r.Op), r.Author.Verb, r.Author.Subresource, r.Author.Manager, r.Author.User,
		r.Author.RealUser, r.Author.AuditID,
		int32(ids.ID(r.Of())), r.Namespace, r.Name, r.UID, r.Replaces, r.Created, encoding, nullTime(r.Expires), value,
	}
}

// nullTime returns NULL for the zero time, which means never.
func nullTime(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}

// lastBackupNote is the name of the note that has the record of the last backup.
const lastBackupNote = "backup/last"

// RecordBackup stores the record of a backup in its database, which may be in use.
func RecordBackup(ctx context.Context, dsn string, b sqlstore.LastBackup) (err error) {
	value, err := b.Encode()
	if err != nil {
		return err
	}
	d, err := OpenWithoutServing(ctx, dsn, Options{AllowLoss: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	for { // other processes may record a backup at the same time
		notes, err := d.Notes(ctx, lastBackupNote)
		if err != nil {
			return fmt.Errorf("last backup: %w", err)
		}
		done, err := d.SetNote(ctx, lastBackupNote, notes[lastBackupNote], string(value))
		if err != nil {
			return fmt.Errorf("last backup: %w", err)
		}
		if done {
			return nil
		}
	}
}

// LastBackup implements sqlstore.Driver.
func (d *Driver) LastBackup(ctx context.Context) (sqlstore.LastBackup, error) {
	notes, err := d.Notes(ctx, lastBackupNote)
	if err == nil && notes[lastBackupNote] == "" {
		err = sqlstore.ErrNotFound
	}
	if err != nil {
		return sqlstore.LastBackup{}, fmt.Errorf("last backup: %w", err)
	}
	return sqlstore.DecodeLastBackup([]byte(notes[lastBackupNote]))
}
