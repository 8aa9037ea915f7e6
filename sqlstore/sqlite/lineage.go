package sqlite

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"byre/migrations"
	"byre/sqlstore"
)

// lineageSuffix is the suffix of the file, beside the database, that says which store the database
// was when the last process used it, and which revisions were given.
const lineageSuffix = ".lineage"

// origin is what the file says.
type origin struct {
	// id is the text of store.lineage. A new epoch has a new one, and so has a process with Options.Lineage.
	id string
	// inode is the number of the database's file. A file that was restored has another one,
	// unless its contents were written over.
	inode uint64
	// birth is when that file was made, because another file may get the inode of one that was
	// removed; 0 if that is not known. See the function birth.
	birth int64
	// revision is the last one that may have been given.
	revision int64
}

// originFormat and birthFormat are its two lines. They have a fixed width, so that a later origin needs
// no space on the disk. Older programs neither read nor write the second line.
const (
	originFormat = "%s %020d %020d\n"
	birthFormat  = "%020d\n"
)

// lineage is the file.
//
// Invariant: without changes in memory, the file is never ahead of the database, because record
// writes a revision after its COMMIT. So a database that is behind the file, or another one, was put
// in its place, by cp or from a snapshot of litestream for example, or the last process was killed
// with changes in its memory (reserve).
//
// The file may be behind the database after a power failure, because only resumeLineage, reserve and close
// sync it.
type lineage struct {
	file *os.File
	origin
}

// resumeLineage compares the database with the file. It begins a new epoch unless the
// database has everything that was ever acknowledged.
//
// The new epoch begins beyond all revisions that were given before, and all before it is marked as
// compacted, so that no revision is given twice, and clients list again.
func (c *committer) resumeLineage(ctx context.Context, state *sqlstore.State) error {
	var stored string
	if err := c.readers.db.QueryRowContext(ctx, selectLineage).Scan(&stored); err != nil {
		return err
	}
	left, now, err := c.file.origins(stored, state.Revision)
	if err != nil {
		return err
	}
	statement, arguments := storeLineage, []any{}
	id, isLeft := cmp.Or(c.options.Lineage, rand.Text()), left.precedes(now) && !c.options.NewEpoch
	switch {
	case isLeft && c.options.Lineage == "":
		statement = ""
	case isLeft || stored == "": // a new database, or one that Load has filled
		now.id = id
		arguments = append(arguments, now.id)
	default:
		now.id, now.revision = id, sqlstore.NextEpoch(max(state.Revision, left.revision))
		statement, arguments = beginEpoch, append(arguments, now.id, now.revision)
		var objects int64
		var last sql.NullString
		if err := c.readers.db.QueryRowContext(ctx, selectExtent).Scan(&objects, &last); err != nil {
			return err
		}
		c.options.Logger.LogAttrs(ctx, slog.LevelWarn,
			"sqlite: the database may have lost commits: its file was copied, restored or moved, or a crash "+
				"lost volatile changes, or another server may have served; a new epoch begins: watches end with 410 and clients list again",
			slog.String("path", c.file.path), slog.String("lastChange", last.String), slog.Int64("objects", objects),
			slog.Int64("was", left.revision), slog.Int64("is", state.Revision), slog.Int64("revision", now.revision))
	}
	if c.lineage.file, err = migrations.OpenOwned(c.file.path+lineageSuffix, os.O_RDWR, 0o600); err != nil {
		return err
	}
	left.birth = cmp.Or(left.birth, now.birth)
	c.lineage.origin = left
	if statement == "" {
		return nil
	}
	// The file is first: a process that is killed here leaves two that differ.
	if err := errors.Join(c.lineage.write(now), c.lineage.file.Sync()); err != nil {
		return err
	}
	if err := c.writer.transaction(func() error {
		_, err := c.writer.conn.ExecContext(ctx, statement, arguments...)
		if err == nil && statement == beginEpoch {
			_, err = c.writer.conn.ExecContext(ctx, compactAll)
		}
		return err
	}); err != nil {
		return err
	}
	// The file alone says from now on which store it is: a copy of it is recognized, whatever of the log it lacks. On
	// a full disk it does so later.
	_, _ = c.writer.conn.ExecContext(ctx, checkpoint)
	*state, err = c.readers.state(ctx)
	return err
}

// isLeft reports whether the database is what the last process has left, or a new one.
func (f *file) isLeft(ctx context.Context) (bool, error) {
	db := f.connect(1, f.reading())
	defer db.Close()
	var stored string
	var state sqlstore.State
	if err := db.QueryRowContext(ctx, selectLineage).Scan(&stored); err != nil || stored == "" {
		return true, err
	}
	if err := db.QueryRowContext(ctx, selectState).Scan(&state.Revision, &state.Compacted, &state.Epoch); err != nil {
		return false, err
	}
	left, now, err := f.origins(stored, state.Revision)
	return left.precedes(now), err
}

// origins returns what the file says, and what the database is; stored is the lineage in it. left is
// zero if there is no file, or if it is broken.
func (f *file) origins(stored string, revision int64) (left, now origin, err error) {
	info, err := os.Stat(f.path)
	if err != nil {
		return left, now, err
	}
	now = origin{id: stored, inode: info.Sys().(*syscall.Stat_t).Ino, birth: birth(f.path), revision: revision}
	text, err := os.ReadFile(f.path + lineageSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return left, now, nil
	}
	if _, err := fmt.Sscanf(string(text), originFormat, &left.id, &left.inode, &left.revision); err != nil {
		left = origin{}
	}
	_, second, _ := strings.Cut(string(text), "\n")
	_, _ = fmt.Sscanf(second, birthFormat, &left.birth) // 0 if it is not there
	return left, now, err
}

// precedes reports whether a database is what the last process has left.
func (o origin) precedes(now origin) bool {
	isOther := o.inode != now.inode || o.birth != 0 && now.birth != 0 && o.birth != now.birth
	return now.id != "" && o.id == now.id && !isOther && o.revision <= now.revision
}

// at returns an origin at a revision.
func (o origin) at(revision int64) origin {
	o.revision = revision
	return o
}

func (l *lineage) write(o origin) error {
	l.origin = o
	_, err := l.file.WriteAt(fmt.Appendf(nil, originFormat+birthFormat, o.id, o.inode, o.revision, o.birth), 0)
	return err
}

// record notes that a revision is in the database. An error is no reason to fail: what is not
// recorded only makes a loss harder to notice.
func (l *lineage) record(revision int64) {
	if l.file != nil && revision > l.revision {
		_ = l.write(l.at(revision))
	}
}

// reserve notes, before it returns, that the revisions up to one may be given without being in the
// database.
func (l *lineage) reserve(revision int64) error {
	was := l.origin
	err := l.write(l.at(revision))
	if err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		l.origin = was
	}
	return err
}

func (l *lineage) close() error {
	if l.file == nil {
		return nil
	}
	return errors.Join(l.file.Sync(), l.file.Close())
}

// ReadPosition returns which process has written last to the database at path (Options.Lineage), and its last revision;
// they are zero if there is no database. One that Load has filled stands for what the last process has left in its
// place. Of a copy only the file is read, without a log. The schema may be that of another program. The caller has the
// database's lock.
func ReadPosition(ctx context.Context, path string, isCopy bool) (lineage string, revision int64, err error) {
	if fresh, err := migrations.InspectFile(path); err != nil || fresh {
		return "", 0, err
	}
	// Without a log the file is complete, and a connection that would make one is not needed.
	f := &file{path: path, busy: defaultBusy, readOnly: true, ignoreLog: isCopy || !hasLog(path)}
	db := f.connect(1, f.reading())
	defer func() { err = errors.Join(err, db.Close()) }()
	if err = db.QueryRowContext(ctx, selectPosition).Scan(&lineage, &revision); err != nil {
		return "", 0, fmt.Errorf("read the position of %s: %w", path, err)
	}
	if lineage == "" && !isCopy {
		left, _, err := f.origins("", revision)
		return left.id, max(revision, left.revision), err
	}
	return lineage, revision, nil
}

// divergedSuffix is before the time in the name of a database that SetAside keeps.
const divergedSuffix = ".diverged-"

// SetAside takes away the database at path, if there is one, because the servers go on from the copy. It
// deletes the database if the copy has its last change. Otherwise it renames it, and returns the new name.
// The caller has the database's lock, and the copy has no log.
func SetAside(ctx context.Context, path, copied string, now time.Time) (kept string, err error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	isIn, err := hasLastChange(ctx, path, copied)
	if err == nil && isIn {
		return "", errors.Join(remove(path), removeLog(path))
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	// The log is copied back first, so that one file has everything. If that fails, such as for a damaged
	// database, it keeps the name that SQLite looks for.
	f := &file{path: path, busy: defaultBusy}
	db := f.connect(1, f.settings())
	_ = errors.Join(db.PingContext(ctx), db.Close())
	kept = path + divergedSuffix + now.UTC().Format("20060102T150405Z")
	err = os.Rename(path, kept)
	if logErr := os.Rename(path+"-wal", kept+"-wal"); !errors.Is(logErr, os.ErrNotExist) {
		err = errors.Join(err, logErr)
	}
	return kept, errors.Join(err, removeLog(path))
}

// Replace makes the copy the database at path, after SetAside, and returns what SetAside does. The caller has
// synced the copy.
func Replace(ctx context.Context, path, copied string, now time.Time) (kept string, err error) {
	if kept, err = SetAside(ctx, path, copied, now); err != nil {
		return kept, err
	}
	// A log of before must not stay: SQLite would apply it to the new file.
	return kept,
		errors.Join(removeLog(path), remove(path+lastBackupSuffix), os.Rename(copied, path),
			migrations.SyncDir(filepath.Dir(path)))
}

// hasLastChange reports whether the copy has the last change of the database at path. A change is known by
// its revision and its time.
func hasLastChange(ctx context.Context, path, copied string) (has bool, err error) {
	var last int64
	var at string
	err = readTransaction(ctx, path, func(_ *file, tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, selectLastChange).Scan(&last, &at)
	})
	if err == nil {
		f := &file{path: copied, busy: defaultBusy, readOnly: true, ignoreLog: true}
		err = f.readTransaction(ctx, func(_ *file, tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, hasChange, last, at).Scan(&has)
		})
	}
	if err != nil {
		return false, fmt.Errorf("compare %s with %s: %w", path, copied, err)
	}
	return has, nil
}
