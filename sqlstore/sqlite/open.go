package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	engine "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/replication"
)

// Options of a Driver. The zero value of each field means its default.
type Options struct {
	// Clock returns the time of changes; the default is time.Now.
	Clock func() time.Time
	// LogPages is the length of the write-ahead log, in pages of 4 kB, at which the writer
	// copies it back; the default is 16,384 (64 MiB). With a Reserve that is three quarters
	// of it at most. A reader that stays on an old snapshot can make the log longer.
	LogPages int
	// Busy is how long the driver waits for a lock that another program (a shell, a
	// backup) holds; the default is 10 seconds.
	Busy time.Duration
	// Volatile selects the resources whose changes may be in memory only, for up to 15
	// seconds. A crash of the process loses the last of these changes, and no others. Nil
	// selects none.
	Volatile func(sqlstore.Key) bool
	// Reserve is the size in bytes of a file beside the database that is emptied when the disk is
	// full, so that objects can be deleted then; 0 means none, and an existing file is emptied.
	Reserve int64
	// Unsynced leaves it to the operating system when commits reach the disk: a power loss may lose or damage the
	// database, which is for a test.
	Unsynced bool
	// AcceptGaps opens a database whose history has gaps, so that the gaps can be
	// compacted.
	AcceptGaps bool
	// Lineage is what the database is called from now on, so that ReadPosition tells which process has written to it last;
	// empty leaves the name. No two processes have the same.
	Lineage string
	// NewEpoch begins a new epoch, because another process may have given revisions that the database does not have.
	NewEpoch bool
	// Replication copies the database while Maintain runs; nil copies nothing. The driver opens and
	// closes it.
	Replication *replication.Replicator
	// Fence fails when another process may have gone on from a copy of the database. Then the driver begins and
	// acknowledges no commit, and tells no read index. Nil never fails.
	Fence func() error
	// Logger logs new epochs and the use of the reserve; by default nothing is logged.
	Logger *slog.Logger
}

// logLimit is LogPages in bytes.
func (o *Options) logLimit() int64 { return int64(o.LogPages) * 4096 }

// copyPages is the length of the log at which the writer copies it back.
//
// Invariant: with a reserve, the log has fewer pages than the reserve, so that all of them can be copied back when the
// disk is full; otherwise no delete could return space. A quarter is for the last transaction, and for a delete. A
// reader that stays in a transaction breaks it, see checkpointer.record.
func (o *Options) copyPages() int {
	if o.Reserve == 0 {
		return o.LogPages
	}
	return max(1, min(o.LogPages, int(o.Reserve/4096/4*3)))
}

// readers is the number of connections that read.
const readers = 4

// Driver implements sqlstore.Driver and sqlstore.Exclusive.
type Driver struct {
	file    *file
	options Options
	lock    *migrations.FileLock
	// info describes the file that was opened.
	info os.FileInfo

	readers      *reader
	committer    committer
	checkpointer checkpointer
	reserve      diskReserve
}

var (
	_ sqlstore.Driver    = (*Driver)(nil)
	_ sqlstore.Exclusive = (*Driver)(nil)
)

// Open opens the database in the file at path. The caller closes the driver. Open fails with a
// *migrations.InUseError if another process has the file open, with migrations.ErrOlder,
// migrations.ErrNewer or migrations.ErrForeign if the file does not have this program's schema,
// and with sqlstore.ErrDamaged if the counters contradict the history.
func Open(ctx context.Context, path string, options Options) (_ *Driver, err error) {
	options.LogPages = cmp.Or(options.LogPages, 16384)
	if options.Clock == nil {
		options.Clock = time.Now
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	d := &Driver{options: options}
	// The lock comes first. It fails if this process has the file open already; to inspect
	// the file then would release SQLite's own locks on it.
	if d.lock, err = migrations.AcquireFile(path); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	d.file = &file{path: d.lock.Path, busy: cmp.Or(options.Busy, defaultBusy), unsynced: options.Unsynced}
	path = d.lock.Path
	d.reserve.path, d.reserve.size, d.reserve.logger = path+reserveSuffix, options.Reserve, options.Logger
	d.checkpointer = checkpointer{file: d.file, options: &d.options, isFull: d.reserve.isInUse.Load,
		grown: make(chan struct{}, 1)}
	d.committer.file, d.committer.options, d.committer.reserve, d.committer.grew = d.file, &d.options, &d.reserve,
		d.checkpointer.signalGrown
	fresh, err := migrations.InspectFile(path)
	if err == nil && fresh {
		err = fmt.Errorf("%s: %w", path, migrations.ErrOlder)
	}
	if err != nil {
		return nil, err
	}
	if d.info, err = os.Stat(path); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	if options.Replication != nil {
		err = options.Replication.Open(path, d.lock.Identity(), d.reserve.isInUse.Load, d.committer.overwrite)
	} else {
		err = replication.Forget(path)
	}
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	if err := d.open(ctx); err != nil {
		var e *engine.Error
		if !errors.As(err, &e) {
			err = fmt.Errorf("%s: %w", path, err)
		}
		return nil, fmt.Errorf("open database: %w", d.file.translate(err))
	}
	return d, nil
}

func (d *Driver) open(ctx context.Context) (err error) {
	f, c := d.file, &d.committer
	if err := f.check(ctx); err != nil {
		return err
	}
	if c.writer, err = newWriter(ctx, f.connect(1, f.settings(
		// A negative number is in KiB. 4,000 KiB hold the inner pages of the B-trees. With
		// 16,000 KiB BenchmarkSQLite takes as much processor time, and 22 MB more memory,
		// because a page of 4 kB with its header takes 8 kB.
		setting{name: "cache_size", value: "-4000"},
		setting{name: "journal_size_limit", value: strconv.FormatInt(d.options.logLimit(), 10)},
		setting{name: "wal_autocheckpoint", value: strconv.Itoa(d.options.copyPages())},
	))); err != nil {
		return err
	}
	if d.readers, err = newReader(ctx, f.connect(readers, f.settings(
		// The kernel caches the file, and the feed caches what is read often.
		setting{name: "cache_size", value: "-1000"},
		setting{name: "query_only", value: "1"},
	)), &c.state); err != nil {
		return err
	}
	c.readers = d.readers
	d.checkpointer.db = f.connect(1, f.settings(
		setting{name: "cache_size", value: "-1000"},
		setting{name: "busy_timeout", value: "0"}, // truncateLog would hold up the writer while it waits for readers
	))
	if err := d.readers.checkCounters(ctx); err != nil && !d.options.AcceptGaps {
		return err
	}
	state, err := d.readers.state(ctx)
	if err != nil {
		return err
	}
	if state.Revision == 0 {
		if err := remove(f.path + lastBackupSuffix); err != nil {
			return err
		}
	}
	if err := c.resumeLineage(ctx, &state); err != nil {
		return err
	}
	c.buffer = newVolatileBuffer(d.options.Volatile, &c.state, state.Revision)
	c.state.Store(&state)
	// This refuses a file that can't be written here, not at the first write. A full disk
	// is accepted, because the data can be read and deleted.
	err = c.transaction(&state, c.writer.touchStore)
	if err != nil && !hasCode(err, sqlite3.SQLITE_FULL) {
		return err
	}
	if r := d.options.Replication; r != nil {
		r.Opened(state.Epoch, state.Revision)
	}
	return d.reserve.open()
}

// Close implements sqlstore.Driver. It waits for the transaction under way.
func (d *Driver) Close() error {
	errs := []error{d.committer.end()}
	if d.checkpointer.db != nil {
		errs = append(errs, d.checkpointer.db.Close())
	}
	if d.readers != nil {
		errs = append(errs, d.readers.close())
	}
	w := d.committer.writer
	if w != nil {
		// The writer is the last connection to close: that copies the log back and removes
		// it.
		errs = append(errs, w.close())
	}
	if d.options.Replication != nil {
		errs = append(errs, d.options.Replication.Close())
		if w != nil {
			// Litestream's connections have prevented that: a log that is there after a stop looks like a crash
			// to InspectAfterCrash.
			db := d.file.connect(1, d.file.settings())
			errs = append(errs, db.Ping(), db.Close())
		}
	}
	return errors.Join(append(errs, d.committer.lineage.close(), d.lock.Close())...)
}

// statements are prepared statements by their texts. They must be closed before the connections,
// because database/sql keeps a connection open for as long as it has a statement, even after Close.
type statements map[string]*sql.Stmt

// prepare prepares queries on a *sql.DB or a *sql.Conn.
func prepare(ctx context.Context, on interface {
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}, queries ...string,
) (statements, error) {
	s := make(statements, len(queries))
	for _, query := range queries {
		stmt, err := on.PrepareContext(ctx, query) //nolint:sqlclosecheck // close closes it
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		s[query] = stmt
	}
	return s, nil
}

func (s statements) close() error {
	var errs []error
	for _, stmt := range s {
		errs = append(errs, stmt.Close())
	}
	return errors.Join(errs...)
}

// defaultBusy is how long a connection waits for a lock that another program holds.
const defaultBusy = 10 * time.Second

// file is the file of a database, and how it is opened.
type file struct {
	path string
	// busy is how long a connection waits for a lock that another program holds.
	busy time.Duration
	// With readOnly, connections write nothing: the last one to close does not copy the
	// log back. With ignoreLog, they read the file without its log.
	readOnly, ignoreLog bool
	// With unsynced, connections sync nothing.
	unsynced bool
}

// dsn returns the URI of the file. Connections do not create the file.
func (f *file) dsn() string {
	switch {
	case f.ignoreLog:
		return migrations.SQLiteDSN(f.path) + "?immutable=1"
	case f.readOnly:
		return migrations.SQLiteDSN(f.path) + "?mode=ro"
	}
	return migrations.SQLiteDSN(f.path) + "?mode=rw"
}

// setting is a pragma with the value that it must have. A fixed one is a property of the file,
// which a connection only checks.
type setting struct {
	name, value string
	fixed       bool
}

// settings returns the settings of a connection that may write.
//
// Invariant: every connection that the driver uses has its settings. connector.Connect sets
// them, reads them back, and closes a connection that does not have them. Otherwise durability
// would depend on what another program has done to the file: a copy that VACUUM INTO has
// made, for example, is not in WAL mode.
func (f *file) settings(more ...setting) []setting {
	synchronous := "2" // FULL: the log is synced at each COMMIT
	if f.unsynced {
		synchronous = "0" // OFF
	}
	return append([]setting{
		f.busyTimeout(),
		{name: "journal_mode", value: "wal"},
		{name: "synchronous", value: synchronous},
		{name: "foreign_keys", value: "0"},
		{name: "auto_vacuum", value: "2", fixed: true}, // INCREMENTAL: compaction shrinks the file
	}, more...)
}

// reading returns the settings of a connection that only reads. It changes nothing in the
// file, not even its journal mode.
func (f *file) reading() []setting {
	return []setting{f.busyTimeout(), {name: "query_only", value: "1"}}
}

func (f *file) busyTimeout() setting {
	return setting{name: "busy_timeout", value: strconv.FormatInt(f.busy.Milliseconds(), 10)}
}

// connector makes connections with settings.
type connector struct {
	engine   engine.Driver
	dsn      string
	settings []setting
}

// connect returns a pool of up to n connections, which it does not close when they are idle.
func (f *file) connect(n int, settings []setting) *sql.DB {
	db := sql.OpenDB(&connector{dsn: f.dsn(), settings: settings})
	db.SetMaxOpenConns(n)
	db.SetMaxIdleConns(n)
	return db
}

// Driver implements driver.Connector.
func (c *connector) Driver() driver.Driver { return &c.engine }

// Connect implements driver.Connector. It fails if a setting does not have its value.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.engine.Open(c.dsn)
	if err != nil {
		return nil, err
	}
	for _, s := range c.settings {
		if err := s.apply(ctx, conn.(engine.ExecQuerierContext)); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return conn, nil
}

// apply sets a setting and reads it back. The statements are put together from texts because
// a pragma takes no parameters; names and values are constants of this package, and numbers.
func (s setting) apply(ctx context.Context, conn engine.ExecQuerierContext) error {
	if !s.fixed {
		if _, err := conn.ExecContext(ctx, "PRAGMA "+s.name+" = "+s.value, nil); err != nil {
			return fmt.Errorf("PRAGMA %s: %w", s.name, err)
		}
	}
	rows, err := conn.QueryContext(ctx, "PRAGMA "+s.name, nil)
	if err != nil {
		return fmt.Errorf("PRAGMA %s: %w", s.name, err)
	}
	defer rows.Close()
	row := make([]driver.Value, 1)
	if err := rows.Next(row); err != nil {
		return fmt.Errorf("PRAGMA %s: %w", s.name, err)
	}
	is := fmt.Sprint(row[0])
	switch {
	case strings.EqualFold(is, s.value):
		return nil
	case s.fixed:
		return fmt.Errorf("%s is %s, want %s: while byre is stopped, run the statements PRAGMA %s = %s; VACUUM; in sqlite3",
			s.name, is, s.value, s.name, s.value)
	}
	return fmt.Errorf("%s stays %s, want %s: the database must be in a local file system", s.name, is, s.value)
}

// The program does not compile with an SQLite before 3.51.3, in which a checkpoint at the same time as
// a reset of the log could lose a commit.
const _ = uint(sqlite3.SQLITE_VERSION_NUMBER - 3_051_003)

// check fails if the schema is not this program's.
func (f *file) check(ctx context.Context) error {
	db := f.connect(1, f.reading())
	defer db.Close()
	schema, err := migrations.SQLiteSchema(ctx, db)
	if err != nil {
		return err
	}
	return migrations.Check(migrations.SQLite, schema)
}
