package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/source"
	"github.com/golang-migrate/migrate/v4/source/iofs"
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
