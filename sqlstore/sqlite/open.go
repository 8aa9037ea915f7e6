package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	engine "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"byre/migrations"
	"byre/migrations/dbfile"
	"byre/sqlstore"
)

// Options of a database. The zero value of each field means its default.
type Options struct {
	// Clock gives the time of changes; time.Now.
	Clock func() time.Time
	// Readers is the number of connections that read: 4.
	Readers int
	// LogPages is the cap of the write-ahead log, in pages of 4 kB: 16,384
	// (64 MiB). A reader that stays on an old snapshot can make it grow beyond.
	LogPages int
	// Busy is how long to wait for a lock that a foreign process (a shell, a
	// backup) holds: 10 seconds.
	Busy time.Duration
	// Volatile selects the resources whose changes may be in memory only for a while. A
	// crash of the process loses the last of these changes, and no others. Nil selects
	// none.
	Volatile func(sqlstore.Key) bool
	// FlushInterval is how long: 15 seconds.
	FlushInterval time.Duration
	// AcceptGaps opens a database whose history has gaps, so that they can be compacted.
	AcceptGaps bool
}

const defaultBusy = 10 * time.Second

// Driver implements sqlstore.Driver, Maintainer, Prober and ReadIndexer.
type Driver struct {
	options Options
	lock    *dbfile.Lock
	path    string
	// readOnly connections write nothing: the last one to close does not copy the log
	// back. Those with ignoreLog see the file as if it had none.
	readOnly, ignoreLog bool
	// file is the file that was opened at path.
	file os.FileInfo

	// writing is held by the transaction under way: a batch, a chunk of a
	// compaction.
	writing sync.Mutex
	writer  *writer
	readers *reader
	// maintenance is the database of the connection that copies the log back.
	maintenance *sql.DB
	// memory is nil without volatile resources.
	memory *memory
	// grown receives when the log has grown since Maintain measured it. Its capacity is
	// 1.
	grown chan struct{}

	// state is where the store stands. Invariant: its revision is not before that of
	// any commit or read that has returned. Commit stores it before it returns its
	// outcomes, a read raises it to its snapshot's (observe).
	state atomic.Pointer[sqlstore.State]
}

var (
	_ sqlstore.Driver      = (*Driver)(nil)
	_ sqlstore.Maintainer  = (*Driver)(nil)
	_ sqlstore.Prober      = (*Driver)(nil)
	_ sqlstore.ReadIndexer = (*Driver)(nil)

	_ sqlstore.BackupRecorder = (*Driver)(nil)
)

// Open opens the database in the file at path.
func Open(ctx context.Context, path string, options Options) (_ *Driver, err error) {
	options.Readers = cmp.Or(options.Readers, 4)
	options.LogPages = cmp.Or(options.LogPages, 16384)
	options.Busy = cmp.Or(options.Busy, defaultBusy)
	options.FlushInterval = cmp.Or(options.FlushInterval, defaultFlushInterval)
	if options.Clock == nil {
		options.Clock = time.Now
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	d := &Driver{options: options, path: path, grown: make(chan struct{}, 1)}
	// The lock comes first: to inspect a file that this process already has open would
	// release SQLite's own locks.
	if d.lock, err = dbfile.Acquire(path); err != nil {
		return nil, err
	}
	d.path = d.lock.Path
	fresh, err := dbfile.Inspect(d.path)
	if err == nil && fresh {
		err = fmt.Errorf("%s: %w", d.path, migrations.ErrOlder)
	}
	if err != nil {
		return nil, errors.Join(err, d.lock.Close())
	}
	if d.file, err = os.Stat(d.path); err != nil {
		return nil, errors.Join(fmt.Errorf("open database: %w", err), d.lock.Close())
	}
	if err := d.open(ctx); err != nil {
		var e *engine.Error
		if !errors.As(err, &e) {
			err = fmt.Errorf("%s: %w", d.path, err)
		}
		return nil, errors.Join(fmt.Errorf("open database: %w", d.translate(err)), d.Close())
	}
	return d, nil
}

func (d *Driver) open(ctx context.Context) (err error) {
	if err := d.check(ctx); err != nil {
		return err
	}
	if d.writer, err = newWriter(ctx, d.connect(1, d.settings(
		// That holds the inner pages of the trees. With 16 MB BenchmarkDriver takes as much
		// processor time and 22 MB more memory: a page of 4 kB with its header takes 8.
		setting{name: "cache_size", value: "-4000"},
		setting{name: "journal_size_limit", value: strconv.Itoa(d.options.LogPages * 4096)},
		setting{name: "wal_autocheckpoint", value: strconv.Itoa(d.options.LogPages)},
	))); err != nil {
		return err
	}
	if d.readers, err = newReader(ctx, d.connect(d.options.Readers, d.settings(
		// The kernel caches the file, and the feed caches what is read often.
		setting{name: "cache_size", value: "-1000"},
		setting{name: "query_only", value: "1"},
	))); err != nil {
		return err
	}
	d.maintenance = d.connect(1, d.settings(setting{name: "cache_size", value: "-1000"}))
	if err := d.readers.checkCounters(ctx); err != nil && !d.options.AcceptGaps {
		return err
	}
	state, err := d.readers.state(ctx)
	if err != nil {
		return err
	}
	if err := d.openMemory(ctx, &state); err != nil {
		return err
	}
	d.state.Store(&state)
	// A file that can't be written is refused at the start, not at the first write. A
	// full disk is accepted, because the data can be read.
	err = d.transaction(&state, d.writer.touchStore)
	if hasCode(err, sqlite3.SQLITE_FULL) {
		return nil
	}
	return err
}

// Close implements sqlstore.Driver. It waits for the transaction under way.
func (d *Driver) Close() error {
	d.writing.Lock()
	defer d.writing.Unlock()
	errs := []error{d.closeMemory()}
	if d.maintenance != nil {
		errs = append(errs, d.maintenance.Close())
	}
	if d.readers != nil {
		errs = append(errs, d.readers.close())
	}
	if d.writer != nil {
		// The last connection to close copies the log back and removes it.
		errs = append(errs, d.writer.close())
	}
	return errors.Join(append(errs, d.lock.Close())...)
}

// oldestEngine is the first release in which a checkpoint can't run into a
// reset of the log and lose a commit.
var oldestEngine = [3]int{3, 51, 3}

// check refuses an engine that is too old and a schema that isn't ours.
func (d *Driver) check(ctx context.Context) error {
	db := d.connect(1, d.reading())
	defer db.Close()
	var release string
	if err := db.QueryRowContext(ctx, `SELECT sqlite_version()`).Scan(&release); err != nil {
		return err
	}
	if older(release, oldestEngine) {
		return fmt.Errorf("SQLite %s is older than 3.51.3", release)
	}
	var tables int
	if err := db.QueryRowContext(ctx, countVersionTable).Scan(&tables); err != nil {
		return err
	}
	var version migrations.Version
	if tables > 0 {
		var dirty bool
		if err := db.QueryRowContext(ctx, migrations.SelectVersion).Scan(&version, &dirty); err != nil {
			return err
		}
	}
	return migrations.Check(migrations.SQLite, version)
}

func older(version string, than [3]int) bool {
	for i, part := range strings.SplitN(version, ".", 3) {
		n, err := strconv.Atoi(part)
		if err != nil || n < than[i] {
			return true
		}
		if n > than[i] {
			return false
		}
	}
	return false
}

// dsn is the URI of the file, which a connection does not make.
func (d *Driver) dsn() string {
	switch {
	case d.ignoreLog:
		return migrations.SQLiteDSN(d.path) + "?immutable=1"
	case d.readOnly:
		return migrations.SQLiteDSN(d.path) + "?mode=ro"
	}
	return migrations.SQLiteDSN(d.path) + "?mode=rw"
}

// statements must be closed before their connections: database/sql keeps a connection
// open as long as it has a statement, even after Close.
type statements []*sql.Stmt

func (s *statements) add(stmt *sql.Stmt, err error) (*sql.Stmt, error) {
	if err == nil {
		*s = append(*s, stmt)
	}
	return stmt, err
}

func (s *statements) close() error {
	var errs []error
	for _, stmt := range *s {
		errs = append(errs, stmt.Close())
	}
	*s = nil
	return errors.Join(errs...)
}
