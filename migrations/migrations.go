package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/source"
	"github.com/golang-migrate/migrate/v4/source/iofs"

	"byre/migrations/dbfile"
)

//go:embed sqlite/*.sql postgres/*.sql
var steps embed.FS

var (
	// ErrForeign means that the database holds something that isn't ours.
	ErrForeign = dbfile.ErrForeign
	// ErrNewer means that a newer version of this program has migrated the database.
	ErrNewer = errors.New("database was made by a newer version of byre")
	// ErrDirty means that another program has begun a migration of the database and not
	// ended it. Ours are made wholly or not at all.
	ErrDirty = errors.New("database is dirty: another program left a migration half done; restore a backup")
	// ErrOlder means that the database has to be migrated first.
	ErrOlder = errors.New("database has not been migrated to this version of byre")
)

// Version is a number of steps taken; 0 is an empty database.
type Version int

// State says where a database stands.
type State struct {
	Dialect Dialect
	// Current is the version the database is at, Latest the program's.
	Current Version
	Latest  Version
}

// Up brings the database to the latest version, making it if there is none.
func Up(ctx context.Context, endpoint string) (State, error) {
	return run(ctx, endpoint, func(_ context.Context, _ session, m *migrate.Migrate) error { return m.Up() })
}

// Down takes back the last step. It fails with an *InUseError while a process uses
// the database. The first step made the tables: to take that back deletes all that
// is stored, which fails with a *DeletesError unless deleteAll is set.
func Down(ctx context.Context, endpoint string, deleteAll bool) (State, error) {
	return run(ctx, endpoint, func(ctx context.Context, db session, m *migrate.Migrate) error {
		if err := db.exclude(ctx); err != nil {
			return err
		}
		current, _, err := db.Version()
		if err != nil {
			return err
		}
		if current == firstStep && !deleteAll {
			deletes := &DeletesError{}
			if deletes.Objects, deletes.Changes, err = db.count(ctx); err != nil {
				return err
			}
			return deletes
		}
		return m.Steps(-1)
	})
}

// firstStep is the version of the step that makes the tables.
const firstStep = 1

// DeletesError means that a step down would delete what is stored.
type DeletesError struct {
	Objects, Changes int64
}

// Error implements error.
func (e *DeletesError) Error() string {
	return fmt.Sprintf("this deletes all data: %d objects, and %d changes of history", e.Objects, e.Changes)
}

// UseLock names the advisory lock that a process shares with others as long as it
// uses a PostgreSQL database.
const UseLock = "in use"

// InUseError means that a process uses the database.
type InUseError = dbfile.InUseError

// Status reads where the database stands and changes nothing. With ErrNewer and
// ErrDirty the State is valid.
func Status(ctx context.Context, endpoint string) (State, error) {
	return run(ctx, endpoint, nil)
}

// Latest is the version that this program wants of a dialect.
func Latest(dialect Dialect) (Version, error) {
	steps, err := iofs.New(steps, string(dialect))
	if err != nil {
		return 0, fmt.Errorf("migrations: %w", err)
	}
	defer steps.Close()
	latest, err := steps.First()
	for err == nil {
		var next uint
		if next, err = steps.Next(latest); err == nil {
			latest = next
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("migrations: %w", err)
	}
	return Version(latest), nil
}

// Check compares a database's version with the one this program wants.
func Check(dialect Dialect, current Version) error {
	latest, err := Latest(dialect)
	switch {
	case err != nil:
		return err
	case current > latest:
		return fmt.Errorf("%w (schema %d, this program knows %d)", ErrNewer, current, latest)
	case current < latest:
		return fmt.Errorf("%w (schema %d, wanted %d): run \"byre migrate up\"", ErrOlder, current, latest)
	}
	return nil
}

// session is one connection that can hold one transaction: the lock.
type session interface {
	database.Driver
	// begin starts the transaction and waits for the lock; it fails with
	// ErrForeign before anything is changed.
	begin(ctx context.Context) error
	// exclude fails with an *InUseError unless nobody else uses the database, and
	// keeps it so until the end.
	exclude(ctx context.Context) error
	// count counts what is stored.
	count(ctx context.Context) (objects, changes int64, err error)
	// end commits or rolls back; keep says which.
	end(ctx context.Context, keep bool) error
}

// move changes the schema in the transaction of a session.
type move func(context.Context, session, *migrate.Migrate) error

const selectCounts = `SELECT (SELECT count(*) FROM objects), (SELECT count(*) FROM changes)`

func run(ctx context.Context, endpoint string, move move) (state State, err error) {
	dialect, dsn, err := ParseEndpoint(endpoint)
	if err != nil {
		return State{}, err
	}
	latest, err := Latest(dialect)
	if err != nil {
		return State{}, err
	}
	db, err := open(ctx, dialect, dsn, move != nil)
	if err != nil {
		return State{}, err
	}
	if db == nil {
		return State{Dialect: dialect, Latest: latest}, nil
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := db.begin(ctx); err != nil {
		return State{}, err
	}
	err = step(ctx, db, dialect, latest, move)
	if err == nil || move == nil {
		// After a step that failed the transaction could only say that it failed.
		current, _, versionErr := db.Version()
		err = errors.Join(err, versionErr)
		state = State{Dialect: dialect, Current: max(Version(current), 0), Latest: latest}
	}
	// The end of the transaction is not the caller's to cancel half way.
	return state, errors.Join(err, db.end(context.WithoutCancel(ctx), move != nil && err == nil))
}

func open(ctx context.Context, dialect Dialect, dsn string, change bool) (session, error) {
	if dialect == SQLite {
		return openSQLite(ctx, dsn, change)
	}
	return openPostgres(ctx, dsn)
}

// step moves the database, unless it is beyond us or already there.
func step(ctx context.Context, db session, dialect Dialect, latest Version, move move) error {
	current, dirty, err := db.Version()
	switch {
	case err != nil:
		return err
	case Version(current) > latest:
		return Check(dialect, Version(current))
	case dirty:
		return ErrDirty
	}
	if move == nil {
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
	err = move(ctx, db, m)
	if errors.Is(err, migrate.ErrNoChange) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
