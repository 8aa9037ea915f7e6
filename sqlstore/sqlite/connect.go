package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	engine "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"byre/migrations"
)

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
