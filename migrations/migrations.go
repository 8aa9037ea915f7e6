package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"strings"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/source"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"
)

//go:embed sqlite/*.sql postgres/*.sql
var steps embed.FS

var (
	// ErrNewer means that a newer release has migrated the database.
	ErrNewer = errors.New("database was made by a newer version of byre")
	// ErrDirty means that another program, such as golang-migrate's command, has begun a
	// migration of the database and not ended it. Migrations of this package never leave that
	// state.
	ErrDirty = errors.New("database is dirty: another program left a migration half done; restore a backup")
	// ErrUnreleased means that a program of before the first release made the database.
	ErrUnreleased = errors.New("database was made by byre before its first release and is not migrated: " +
		"carry it over by \"byre backup\" of the program that made it and \"byre restore\" of this one")
	// ErrOlder means that the caller must migrate the database first.
	ErrOlder = errors.New("database has not been migrated to this version of byre")
)

// Version is the number of steps that were run; that of an empty database is 0.
type Version int

// State is the version of a database.
type State struct {
	Dialect Dialect
	// Current is the version of the database, Latest that of this program.
	Current Version
	Latest  Version
}

// Up brings the database at an endpoint to the latest version. It makes a SQLite file that does
// not exist. It calls each of onStep before each step. It fails with ErrForeign, ErrNewer and
// ErrDirty, and for SQLite with an *InUseError. It changes nothing if a newer release has
// migrated the database and lets this one use it.
func Up(ctx context.Context, endpoint string, onStep ...func(Step)) (State, error) {
	return run(ctx, endpoint, onStep, func(_ *session, m *migrate.Migrate) error {
		// If a newer release has migrated the database, m does not know its version, and this
		// is fs.ErrNotExist.
		return m.Up()
	})
}

// Down reverses the last step, before which it calls each of onStep. It fails with an *InUseError
// while a process uses the database. To reverse the first step, which makes the tables, deletes
// all data: it fails with a *DeletesError unless deleteAll is set. Other errors are those of Up.
func Down(ctx context.Context, endpoint string, deleteAll bool, onStep ...func(Step)) (State, error) {
	return run(ctx, endpoint, onStep, func(db *session, m *migrate.Migrate) error {
		if err := db.exclude(ctx); err != nil {
			return err
		}
		current, err := db.schema(ctx)
		if err != nil {
			return err
		}
		if current.Version > db.latest {
			return newer(current, db.latest)
		}
		if current.Version == firstStep && !deleteAll {
			deletes := &DeletesError{}
			if deletes.Objects, deletes.Changes, err = db.count(ctx); err != nil {
				return err
			}
			return deletes
		}
		return m.Steps(-1)
	})
}

// Step is a step that begins, or whose reversal begins. The version of a database is the number of
// its last step.
type Step struct {
	Number Version
	// Latest is the version of this program.
	Latest Version
}

// firstStep is the version of the step that makes the tables.
const firstStep = 1

// DeletesError means that Down would delete all data: the numbers are those of the rows.
type DeletesError struct {
	Objects, Changes int64
}

// Error implements error.
func (e *DeletesError) Error() string {
	return fmt.Sprintf("this deletes all data: %d objects, and %d changes of history", e.Objects, e.Changes)
}

// UseLock names the advisory lock that each process holds in shared mode while it uses a
// PostgreSQL database: the in-use lock.
const UseLock = "in use"

// Status returns the version of a database, and changes nothing. With ErrNewer and ErrDirty the
// State is valid.
func Status(ctx context.Context, endpoint string) (State, error) {
	return run(ctx, endpoint, nil, nil)
}

// Latest returns the version of this program's schema in a dialect: its steps are numbered from 1 on.
func Latest(dialect Dialect) (Version, error) {
	ups, err := fs.Glob(steps, string(dialect)+"/*.up.sql")
	if err != nil {
		return 0, fmt.Errorf("migrations: %w", err)
	}
	return Version(len(ups)), nil
}

// Check fails with ErrNewer or ErrOlder unless this program may use a database with the schema:
// it has this program's version, or a newer one that lets this program use it.
func Check(dialect Dialect, s Schema) error {
	latest, err := Latest(dialect)
	switch {
	case err != nil:
		return err
	case s.Version == 0:
		return fmt.Errorf("%w: it has no tables of byre: name the database that \"byre serve\" uses", ErrOlder)
	case s.Version < latest:
		return fmt.Errorf("%w (schema %d, wanted %d): run \"byre migrate up\"", ErrOlder, s.Version, latest)
	case s.Least > latest:
		return newer(s, latest)
	}
	return nil
}

func newer(s Schema, latest Version) error {
	return fmt.Errorf("%w (schema %d, which needs a program that knows schema %d; this one knows %d)",
		ErrNewer, s.Version, s.Least, latest)
}

// move runs steps in the transaction of a session.
type move func(*session, *migrate.Migrate) error

// run calls move in a transaction and returns the state after it. Without a move it only reads the
// state.
func run(ctx context.Context, endpoint string, onStep []func(Step), move move) (state State, err error) {
	dialect, dsn, err := ParseEndpoint(endpoint)
	if err != nil {
		return State{}, err
	}
	latest, err := Latest(dialect)
	if err != nil {
		return State{}, err
	}
	conn, err := open(ctx, dialect, dsn, move != nil)
	if err != nil {
		return State{}, err
	}
	if conn == nil {
		return State{Dialect: dialect, Latest: latest}, nil
	}
	db := &session{connection: conn, ctx: ctx, dialect: dialect, latest: latest, onStep: onStep}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := db.begin(ctx); err != nil {
		return State{}, err
	}
	err = step(ctx, db, dialect, move)
	if err == nil || move == nil {
		// After a step that failed, the transaction can't read the version any more.
		current, _, versionErr := db.Version()
		err = errors.Join(err, versionErr)
		state = State{Dialect: dialect, Current: max(Version(current), 0), Latest: latest}
	}
	// The end of the caller's context does not cancel a COMMIT.
	return state, errors.Join(err, db.end(context.WithoutCancel(ctx), move != nil && err == nil))
}

func open(ctx context.Context, dialect Dialect, dsn string, change bool) (connection, error) {
	if dialect == SQLite {
		return openSQLite(ctx, dsn, change)
	}
	return openPostgres(ctx, dsn)
}

// step calls move, if there is one. It fails if the database is newer or dirty.
func step(ctx context.Context, db *session, dialect Dialect, move move) error {
	current, err := db.schema(ctx)
	switch {
	case err != nil:
		return err
	case current.Version > db.latest && current.Least > db.latest:
		return newer(current, db.latest)
	case current.IsDirty:
		return ErrDirty
	case move == nil:
		return nil
	}
	var files source.Driver
	if files, err = iofs.New(steps, string(dialect)); err != nil {
		return err
	}
	defer files.Close()
	m, err := migrate.NewWithInstance("embedded", files, string(dialect), db)
	if err != nil {
		return err
	}
	err = move(db, m)
	if errors.Is(err, migrate.ErrNoChange) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Dialect is a kind of database.
type Dialect string

// The dialects. Each is also the name of the folder with its steps.
const (
	SQLite   Dialect = "sqlite"
	Postgres Dialect = "postgres"
)

// ParseEndpoint returns the kind of database of an endpoint, and its place: the path of the file
// for SQLite, the connection string for PostgreSQL. Its errors do not repeat the endpoint, which
// may have a password.
func ParseEndpoint(endpoint string) (Dialect, string, error) {
	scheme, rest, found := strings.Cut(endpoint, ":")
	switch {
	case found && scheme == "sqlite":
		rest = strings.TrimPrefix(rest, "//")
		if rest == "" || strings.ContainsAny(rest, "?#") {
			return "", "", errors.New("endpoint: want sqlite:///path/of/file without parameters")
		}
		path, err := url.PathUnescape(rest)
		if err != nil {
			return "", "", fmt.Errorf("endpoint: %w", err)
		}
		return SQLite, path, nil
	case found && (scheme == "postgres" || scheme == "postgresql"):
		return Postgres, endpoint, nil
	case !strings.Contains(endpoint, "://") && strings.Contains(endpoint, "="):
		return Postgres, endpoint, nil
	default:
		// The error does not repeat the endpoint, which may have a password.
		return "", "", errors.New("endpoint: want sqlite:///path or postgres://user@host/database")
	}
}

// The table byre_schema_version has the version in one row. It exists once the first step was run.
// Its name distinguishes databases of byre from those of other programs. The table byre_schema had
// the version before the numbers of the steps began anew.
const (
	createVersionTable = `CREATE TABLE IF NOT EXISTS byre_schema_version (version bigint NOT NULL, dirty boolean NOT NULL)`
	dropVersionTable   = `DROP TABLE IF EXISTS byre_schema_version`
	clearVersion       = `DELETE FROM byre_schema_version`
	insertVersion      = `INSERT INTO byre_schema_version (version, dirty) VALUES ($1, $2)`

	// sqliteTables and postgresTables select which tables exist: byre_schema_version, store and
	// byre_schema.
	sqliteTables = `
SELECT count(*) FILTER (WHERE name = 'byre_schema_version') > 0, count(*) FILTER (WHERE name = 'store') > 0,
       count(*) FILTER (WHERE name = 'byre_schema') > 0
FROM sqlite_schema WHERE type = 'table'`
	postgresTables = `
SELECT to_regclass(quote_ident(current_schema()) || '.byre_schema_version') IS NOT NULL,
       to_regclass(quote_ident(current_schema()) || '.store') IS NOT NULL,
       to_regclass(quote_ident(current_schema()) || '.byre_schema') IS NOT NULL`

	selectVersion    = `SELECT version, dirty FROM byre_schema_version`
	selectUnreleased = `SELECT version FROM byre_schema`
	selectLeast      = `SELECT least_version FROM store WHERE id = 1`
)

// Schema is what a database says of its schema. That of an empty database is zero.
type Schema struct {
	Version Version
	// Least is the latest version of the oldest program that may use the database: a step
	// that such programs need not know leaves it as it is.
	Least Version
	// IsDirty is true in the middle of a step.
	IsDirty bool
}

// row is one row of a result; *sql.Row and pgx.Row implement it.
type row interface {
	Scan(destinations ...any) error
}

// SQLiteSchema returns the schema of the database that db is a connection to. It fails with
// ErrUnreleased.
func SQLiteSchema(ctx context.Context, db interface {
	QueryRowContext(ctx context.Context, query string, arguments ...any) *sql.Row
}) (Schema, error) {
	return readSchema(sqliteTables, func(query string) row { return db.QueryRowContext(ctx, query) })
}

// PostgresSchema returns the schema in the current schema of a connection, which is zero if the schema that the
// endpoint names does not exist. It fails with ErrUnreleased.
func PostgresSchema(ctx context.Context, conn *pgx.Conn) (Schema, error) {
	if exists, err := HasSchema(ctx, conn); err != nil || !exists {
		return Schema{}, err
	}
	s, err := readSchema(postgresTables, func(query string) row { return conn.QueryRow(ctx, query) })
	if errors.Is(err, ErrUnreleased) {
		return s, err
	}
	return s, Explain(conn.Config(), err)
}

func readSchema(tables string, query func(string) row) (s Schema, err error) {
	var hasVersion, hasStore, isUnreleased bool
	switch err := query(tables).Scan(&hasVersion, &hasStore, &isUnreleased); {
	case err != nil:
		return s, err
	case isUnreleased:
		if err := query(selectUnreleased).Scan(&s.Version); err != nil {
			return s, err
		}
		return s, fmt.Errorf("%w: schema %d in the table byre_schema", ErrUnreleased, s.Version)
	case !hasVersion:
		return s, nil
	}
	err = query(selectVersion).Scan(&s.Version, &s.IsDirty)
	if errors.Is(err, sql.ErrNoRows) { // pgx.ErrNoRows is sql.ErrNoRows
		return Schema{}, nil
	}
	if err == nil && hasStore {
		err = query(selectLeast).Scan(&s.Least)
	}
	return s, err
}

// connection is a connection to a database of one dialect.
type connection interface {
	// begin begins the transaction of one migration and waits for the lock of the migration, which the
	// transaction holds. It fails with ErrForeign, and changes nothing.
	begin(ctx context.Context) error
	// end commits the transaction if keep is true, and otherwise rolls it back.
	end(ctx context.Context, keep bool) error
	// exclude fails with an *InUseError if another process uses the database, and keeps
	// other processes from using it until end.
	exclude(ctx context.Context) error
	// schema returns what the database says of its schema.
	schema(ctx context.Context) (Schema, error)
	// exec executes one statement; without arguments, a text that may have several.
	exec(ctx context.Context, text string, arguments ...any) error
	// count counts the rows of objects and of changes.
	count(ctx context.Context) (objects, changes int64, err error)
	Close() error
}

const selectCounts = `SELECT (SELECT count(*) FROM current_objects), (SELECT count(*) FROM undo_log)`

// session is a connection with the transaction of one migration. It implements golang-migrate's
// database.Driver. Lock does nothing, because the transaction holds the lock. golang-migrate does not
// call Open and Drop.
type session struct {
	connection
	ctx     context.Context //nolint:containedctx // golang-migrate's interface has no context.
	dialect Dialect
	latest  Version
	onStep  []func(Step)
}

var errUnused = errors.New("migrations: not a part of a migration")

// Open implements database.Driver.
func (*session) Open(string) (database.Driver, error) { return nil, errUnused }

// Lock implements database.Driver.
func (*session) Lock() error { return nil }

// Unlock implements database.Driver.
func (*session) Unlock() error { return nil }

// Drop implements database.Driver.
func (*session) Drop() error { return errUnused }

// Run implements database.Driver.
func (s *session) Run(migration io.Reader) error {
	text, err := io.ReadAll(migration)
	if err != nil {
		return err
	}
	return s.exec(s.ctx, string(text))
}

// Version implements database.Driver.
func (s *session) Version() (version int, dirty bool, err error) {
	schema, err := s.schema(s.ctx)
	if err == nil && schema.Version == 0 {
		return database.NilVersion, false, nil
	}
	return int(schema.Version), schema.IsDirty, err
}

// SetVersion implements database.Driver. golang-migrate sets the version that a step leads to,
// dirty, before it runs the step: then SetVersion calls onStep.
func (s *session) SetVersion(version int, dirty bool) error {
	if dirty {
		current, _, err := s.Version()
		if err != nil {
			return err
		}
		for _, call := range s.onStep {
			call(Step{Number: Version(max(current, version)), Latest: s.latest})
		}
	}
	if version == database.NilVersion {
		return s.exec(s.ctx, dropVersionTable)
	}
	create := createVersionTable
	if s.dialect == Postgres {
		create = createVersionTablePostgres
	}
	for _, text := range []string{create, clearVersion} {
		if err := s.exec(s.ctx, text); err != nil {
			return err
		}
	}
	return s.exec(s.ctx, insertVersion, version, dirty)
}
