package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	engine "modernc.org/sqlite"

	"byre/migrations"
	"byre/sqlstore"
)

// Inspect reads every page of the file at path. It calls report for each problem that the engine
// finds, and for each table, index or view that is missing or was changed. ReadDamaged tells what
// is wrong with the rows. A process may serve the store meanwhile. Inspect writes nothing, and
// does not copy the write-ahead log back. An error means that it could not read the file to its
// end.
func Inspect(ctx context.Context, path string, report func(sqlstore.Finding)) error {
	f := &file{path: path, busy: defaultBusy, readOnly: true}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	return f.translate(f.inspect(ctx, report))
}

func (f *file) inspect(ctx context.Context, report func(sqlstore.Finding)) error {
	db := f.connect(1, f.reading())
	defer db.Close()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // the transaction has written nothing
	problems, err := texts(ctx, tx, integrityCheck)
	if err != nil {
		return err
	}
	for _, problem := range problems {
		if problem != "ok" {
			report(sqlstore.Finding{Row: "file", Reason: problem})
		}
	}
	return compareSchema(ctx, tx, report)
}

// compareSchema reports tables, indexes and views that are missing, or whose definition is not
// the one of the migrations. It does not report those that an operator has added.
func compareSchema(ctx context.Context, tx *sql.Tx, report func(sqlstore.Finding)) (err error) {
	dir, err := os.MkdirTemp("", "byre-schema-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	fresh := filepath.Join(dir, "byre.db")
	if _, err := migrations.Up(ctx, (&url.URL{Scheme: "sqlite", Path: fresh}).String()); err != nil {
		return err
	}
	db, err := sql.Open("sqlite", migrations.SQLiteDSN(fresh)+"?mode=ro")
	if err != nil {
		return err
	}
	defer db.Close()
	want, err := texts(ctx, db, selectSchema)
	if err != nil {
		return err
	}
	found, err := texts(ctx, tx, selectSchema)
	if err != nil {
		return err
	}
	have := make(map[string]bool)
	for _, definition := range found {
		have[definition] = true
	}
	for _, definition := range want {
		if !have[definition] {
			report(sqlstore.Finding{Row: "schema", Reason: "is missing or was changed: " + definition})
		}
	}
	return nil
}

// querier is a *sql.DB or a *sql.Tx.
type querier interface {
	QueryContext(ctx context.Context, query string, arguments ...any) (*sql.Rows, error)
}

// texts returns the rows of a query that has one column.
func texts(ctx context.Context, q querier, query string) ([]string, error) {
	return collect(func(rows *sql.Rows) (text string, err error) {
		err = rows.Scan(&text)
		return text, err
	})(q.QueryContext(ctx, query)) //nolint:rowserrcheck // collect checks it
}

// InspectAfterCrash checks the file at path if the last process that had it open did not close it, and with copies also
// if that process had another file: a copy that was made while a process wrote may be damaged. (A standby compares the
// checksums of its copy while it makes it.) The caller calls it before anything else opens the file. It fails with
// sqlstore.ErrDamaged if the file is damaged. It changes nothing. If the check takes longer than limit, it returns
// false: then the caller calls CheckFile of the Driver that it opens.
//
// It recognizes an unclean stop by a write-ahead log that is not empty. A Driver writes to the
// log when it is opened, and the last connection that closes copies the log back and deletes
// it, so that a log that exists belongs to an open Driver or to one that crashed. If another
// program reads the file while a Driver closes it, the log stays too; then the check is
// superfluous and does no harm.
//
// What it earns: it refuses a damaged file before anything is written on top of the damage. The checksums of rows find
// most of what it finds, but only when the rows are read.
func InspectAfterCrash(
	ctx context.Context, path string, copies bool, limit time.Duration, logger *slog.Logger,
) (complete bool, err error) {
	resolved, err := migrations.ResolveFile(path)
	if err != nil {
		return true, nil //nolint:nilerr // the file does not exist yet
	}
	if _, err := os.Stat(resolved); err != nil || !copies && !hasLog(resolved) {
		return true, nil //nolint:nilerr // as above
	}
	lock, err := migrations.AcquireFile(path)
	if err != nil {
		return false, err
	}
	f := &file{path: lock.Path, busy: defaultBusy, readOnly: true}
	complete, err = f.inspectAfterCrash(ctx, copies, limit, logger)
	return complete, errors.Join(err, lock.Close())
}

func hasLog(path string) bool {
	wal, err := os.Stat(path + "-wal")
	return err == nil && wal.Size() > 0
}

func (f *file) inspectAfterCrash(
	ctx context.Context, copies bool, limit time.Duration, logger *slog.Logger,
) (complete bool, err error) {
	if fresh, err := migrations.InspectFile(f.path); err != nil || fresh {
		return true, err
	}
	cause := "byre was not stopped cleanly"
	if hasLog(f.path) {
		if err := f.compareWithLog(ctx); err != nil {
			return false, f.damaged(ctx, err)
		}
	} else if !copies { // another process had the file open and has closed it meanwhile
		return true, nil
	} else {
		if isLeft, err := f.isLeft(ctx); isLeft && err == nil {
			return true, nil
		}
		cause = "the file was copied, restored or moved" // or a page is damaged that says which store it is
	}
	start := time.Now()
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	readAhead(limited, f.path)
	err = f.quickCheck(limited)
	switch {
	case limited.Err() != nil && ctx.Err() == nil:
		logger.Info("store: "+cause+": the database file is checked while it is served", "path", f.path)
		return false, nil
	case err != nil:
		return false, f.damaged(ctx, err)
	}
	logger.Info("store: "+cause+", and the database file is sound", "path", f.path, "took",
		time.Since(start).Round(time.Millisecond))
	return true, nil
}

// damaged is the error of a check.
func (f *file) damaged(ctx context.Context, err error) error {
	var e *engine.Error
	if ctx.Err() == nil && !errors.As(err, &e) {
		return fmt.Errorf("%w: %s: %w: %s", sqlstore.ErrDamaged, f.path, err, nextWhenDamaged)
	}
	return f.translate(err)
}

// CheckFile is the check of InspectAfterCrash, of the file that this driver has open. It reads the whole file, and
// the log is not copied back meanwhile. It fails with sqlstore.ErrDamaged if the structure of the file is
// damaged. Where it is, reads that succeed are right nevertheless, as each compares its row's checksum.
func (d *Driver) CheckFile(ctx context.Context) error {
	if err := d.file.quickCheck(ctx); err != nil {
		return d.file.damaged(ctx, err)
	}
	return nil
}

func (f *file) quickCheck(ctx context.Context) error {
	db := f.connect(1, f.reading())
	defer db.Close()
	problems, err := texts(ctx, db, quickCheck)
	if err != nil {
		return err
	}
	for _, problem := range problems {
		if problem != "ok" {
			return errors.New(strings.Join(strings.Fields(problem), " "))
		}
	}
	return nil
}

// readAhead reads the file at path from beginning to end, so that the kernel has it in memory.
//
// SQLite's quick_check reads single pages, those of each table from the last to the first, which
// the kernel's read-ahead does not recognize. A file that is not in memory, as after a power
// failure, is checked several times as fast if it is read in order before
// (BenchmarkInspectAfterCrash). Where the file is larger than the memory, this is one more read
// in order. Memory-mapped input (mmap_size) would do the same, but the kernel ends the process
// with SIGBUS where a page can't be read, and the check must report such a page.
//
// The caller has no connection to the file open: to close a file releases the locks that SQLite
// has on it in this process. An error is ignored, because the check meets it too.
func readAhead(ctx context.Context, path string) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer file.Close()
	for buffer := make([]byte, 1<<20); ctx.Err() == nil && err == nil; {
		_, err = io.ReadFull(file, buffer)
	}
}

// compareWithLog fails if the log belongs to another file, or to this file before it was
// replaced. SQLite would copy the pages of such a log into the file without an error.
//
// Invariant: the counters of the file alone are never later than those of the file with its
// own log, because the log only adds commits. With another log they may be, and where a page of the file is
// torn, which the log has whole.
func (f *file) compareWithLog(ctx context.Context) error {
	withoutLog := &file{path: f.path, busy: f.busy, ignoreLog: true}
	alone, err := withoutLog.readState(ctx)
	if err != nil {
		return nil //nolint:nilerr // the process may have ended during a checkpoint, when the file alone is not consistent
	}
	both, err := f.readState(ctx)
	switch {
	case err != nil:
		return err
	case alone.Revision <= both.Revision && alone.Compacted <= both.Compacted:
		return nil
	case withoutLog.quickCheck(ctx) != nil:
		return nil // pages that the power failure has torn in a checkpoint: the log has them whole
	}
	return fmt.Errorf("the write-ahead log is not that of this file (revision %d, with the log %d): "+
		"if the file was restored, delete %s-wal and %s-shm", alone.Revision, both.Revision, f.path, f.path)
}

func (f *file) readState(ctx context.Context) (s sqlstore.State, err error) {
	db := f.connect(1, f.reading())
	defer db.Close()
	err = db.QueryRowContext(ctx, `SELECT revision, compacted, epoch FROM counters`).Scan(&s.Revision, &s.Compacted,
		&s.Epoch)
	return s, err
}

// checkCounters compares the counters with the first and the last row of the undo log, by a
// few searches of its primary key. Every Open calls it.
func (r *reader) checkCounters(ctx context.Context) error {
	var state sqlstore.State
	var first sql.NullInt64
	if err := r.db.QueryRowContext(ctx, selectEnds).Scan(&state.Revision, &state.Compacted, &first); err != nil {
		return err
	}
	if state.Revision < state.Compacted || first.Valid && first.Int64 != state.Compacted+1 || !first.Valid &&
		state.Revision > state.Compacted {
		return &countersError{state: state, first: first.Int64}
	}
	return nil
}

// countersError means that the counters contradict the undo log.
type countersError struct {
	state sqlstore.State
	first int64
}

func (e *countersError) Error() string {
	return fmt.Sprintf("the last revision is %d, %d are compacted, and the first change after them is %d",
		e.state.Revision, e.state.Compacted, e.first)
}

// ReadDamaged is ReadSnapshot of a file that may be damaged. The sequences yield a
// *sqlstore.DamagedRow for what can't be read or does not have its checksum, and go on after it.
// Objects are in the order of the revisions that created them. Their number is not known.
func ReadDamaged(ctx context.Context, path string, read func(sqlstore.Snapshot) error) error {
	return readTransaction(ctx, path, func(_ *file, tx *sql.Tx) error {
		s := sqlstore.Snapshot{Header: sqlstore.Header{Time: snapshotTime(), ObjectCount: -1}}
		err := tx.QueryRowContext(ctx, selectState).Scan(&s.Revision, &s.Compacted, &s.Epoch)
		if err != nil { // the end of undo_log
			err = tx.QueryRowContext(ctx, selectStateByIndex).Scan(&s.Revision, &s.Compacted, &s.Epoch)
		}
		if err != nil {
			return err
		}
		histories, err := collect(scanHistory)(tx.QueryContext(ctx, selectHistories)) //nolint:rowserrcheck // collect checks it
		// otherwise all history counts as compacted, and as deleted, as far as the store
		s.CompleteAfter = s.Compacted
		if err == nil {
			s.CompleteAfter = 0
			for i := range histories {
				s.CompleteAfter = max(s.CompleteAfter, histories[i].CompleteAfter)
			}
			s.SetRetained(histories)
		}
		objects := damagedTable[sqlstore.ObjectRow]{
			name: "current_objects", between: selectObjectsBetween, keys: selectObjectKeys,
			scan: scanObjectRow, rowid: func(r *sqlstore.ObjectRow) int64 { return r.Created },
		}
		changes := damagedTable[sqlstore.ChangeRow]{
			name: "undo_log", between: selectUndoBetween, keys: selectUndoKeys, isHistory: true,
			scan: scanChangeRow, rowid: func(r *sqlstore.ChangeRow) int64 { return r.Revision },
		}
		s.Objects, s.Changes = objects.rows(ctx, tx, s.Revision), changes.rows(ctx, tx, s.Revision)
		return read(s)
	})
}

// damagedTable reads a table by its rowid, for which no index is needed. After a row that can't be
// read it goes on from the next rowid from which it can (see skip).
type damagedTable[T any] struct {
	name string
	// between selects the rows from one rowid to another. keys selects their keys and rowids,
	// from an index alone.
	between, keys string
	// isHistory says that a rowid is the revision of a change.
	isHistory bool
	scan      func(*sql.Rows) (*T, error)
	rowid     func(*T) int64
}

// rows yields the rows up to a rowid.
func (d *damagedTable[T]) rows(ctx context.Context, tx *sql.Tx, last int64) iter.Seq2[*T, error] {
	last = min(last, math.MaxInt64-1)
	return func(yield func(*T, error) bool) {
		for next := int64(1); next <= last; {
			var failed error
			for row, err := range rowsOf(ctx, tx, d.between, d.scan, next, math.MaxInt64) {
				if failed = err; err != nil {
					break
				}
				next = max(next, d.rowid(row)+1) // where a page is damaged, rows may be out of order
				if !yield(row, nil) {
					return
				}
			}
			if failed == nil {
				return
			}
			var damaged []*sqlstore.DamagedRow
			var sum *damagedError
			var err error
			if errors.As(failed, &sum) {
				damaged = append(damaged,
					d.damaged(fmt.Sprintf("revision %d, %s", sum.revision, sum.key.Display()), "the row does not have its checksum",
						sum.key, sum.rowid))
				next = max(next, sum.rowid) + 1 // the rowid may be damaged too
			} else {
				damaged, err = d.skip(ctx, tx, &next, last, failed)
			}
			for _, row := range damaged {
				if !yield(nil, row) {
					return
				}
			}
			if err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

// mostWalked is how many rowids skip tries one by one.
const mostWalked = 10_000

// skip moves next, from which on the table could not be read for a reason, to the next rowid from which it can, or
// behind last, and returns what can't be read before it. Rowids may be far apart, and last may be damaged: after
// mostWalked of them the steps double, and the end of what can't be read is found by halves. The rows between two pages
// that can't be read may then count as unreadable too.
func (d *damagedTable[T]) skip(
	ctx context.Context, tx *sql.Tx, next *int64, last int64, reason error,
) (damaged []*sqlstore.DamagedRow, err error) {
	from, step := *next, int64(1)
	for failed, walked := reason, 0; failed != nil && *next <= last; walked++ {
		if walked > mostWalked {
			step = min(2*step, last-*next+1)
		}
		*next += step
		failed = d.readFrom(ctx, tx, *next)
	}
	for low := *next - step; *next-low > 1; {
		if middle := low + (*next-low)/2; d.readFrom(ctx, tx, middle) == nil {
			*next = middle
		} else {
			low = middle
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	to := *next - 1
	if damaged = d.named(ctx, tx, from, to, reason); len(damaged) > 0 {
		return damaged, nil
	}
	unnamed := d.damaged(fmt.Sprintf("from revision %d to %d", from, to),
		fmt.Sprintf("%v; nor can the index that names the rows", reason), sqlstore.Key{}, to)
	return []*sqlstore.DamagedRow{unnamed}, nil
}

// readFrom fails if the engine can't read the first row from a rowid on, whatever its checksum.
func (d *damagedTable[T]) readFrom(ctx context.Context, tx *sql.Tx, rowid int64) error {
	for _, err := range rowsOf(ctx, tx, d.between, d.scan, rowid, math.MaxInt64) {
		var sum *damagedError
		if err == nil || errors.As(err, &sum) {
			return nil
		}
		return err
	}
	return nil
}

// named returns the rows from one rowid to another as the index names them; none if it can't be
// read.
func (d *damagedTable[T]) named(ctx context.Context, tx *sql.Tx, from, to int64, reason error) []*sqlstore.DamagedRow {
	all, err := collect(func(rows *sql.Rows) (*sqlstore.DamagedRow, error) {
		var k sqlstore.Key
		var rowid int64
		err := rows.Scan(&k.Group, &k.Resource, &k.Owner, &k.Namespace, &k.Name, &rowid)
		row := k.Display()
		if d.isHistory {
			row = fmt.Sprintf("revision %d, %s", rowid, row)
		}
		return d.damaged(row, "the row can't be read: "+reason.Error(), k, rowid), err
	})(tx.QueryContext(ctx, d.keys, from, to)) //nolint:rowserrcheck // collect checks it
	if err != nil {
		return nil
	}
	return all
}

func (d *damagedTable[T]) damaged(row, reason string, key sqlstore.Key, rowid int64) *sqlstore.DamagedRow {
	damaged := &sqlstore.DamagedRow{Finding: sqlstore.Finding{Row: d.name + ": " + row, Reason: reason}, Key: key}
	if d.isHistory {
		damaged.Revision = rowid
	}
	return damaged
}
