package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"byre/migrations"
	"byre/sqlstore"
)

// Options of a database. The zero value of each field means its default.
type Options struct {
	// LockTimeout is how long to wait for another process's transaction before
	// its session is terminated, if it is idle: 5 seconds.
	LockTimeout time.Duration
	// CommitTimeout is how long a batch may take besides: 10 seconds. What
	// takes longer has an unknown outcome.
	CommitTimeout time.Duration
	// AllowLoss opens a server that runs with fsync or synchronous_commit off,
	// and may forget commits when it crashes.
	AllowLoss bool
}

// Driver implements sqlstore.Driver, Excluder and Hinter.
type Driver struct {
	options Options
	// writes has one connection, so that readers can't keep it from the writer.
	writes *pgxpool.Pool
	reads  *pgxpool.Pool
}

var (
	_ sqlstore.Driver   = (*Driver)(nil)
	_ sqlstore.Excluder = (*Driver)(nil)
	_ sqlstore.Hinter   = (*Driver)(nil)
)

// Open connects to a database. dsn is what pgx takes: a URL or keywords.
func Open(ctx context.Context, dsn string, options Options) (*Driver, error) {
	options.LockTimeout = cmp.Or(options.LockTimeout, 5*time.Second)
	options.CommitTimeout = cmp.Or(options.CommitTimeout, 10*time.Second)
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "byre"
	}
	if !strings.Contains(dsn, "pool_max_conns") {
		// Lists keep theirs for as long as they stream.
		config.MaxConns = max(config.MaxConns, 10)
	}
	pooled, err := inspect(ctx, config.ConnConfig, options)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	if pooled && config.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	d := &Driver{options: options}
	if d.reads, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	config = config.Copy()
	config.MaxConns, config.MinConns, config.MinIdleConns = 1, 0, 0
	if d.writes, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		d.reads.Close()
		return nil, fmt.Errorf("database: %w", err)
	}
	return d, nil
}

// Close implements sqlstore.Driver. It waits for connections in use.
func (d *Driver) Close() error {
	d.writes.Close()
	d.reads.Close()
	return nil
}

// inspect refuses a server or schema that we can't work with. pooled says that
// the connection ends at something before the server.
func inspect(ctx context.Context, config *pgx.ConnConfig, options Options) (pooled bool, err error) {
	config = config.Copy()
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false, translate(err)
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	var (
		pid                 uint32
		fsync, synchronous  string
		migrated, isStandby bool
	)
	err = conn.QueryRow(ctx, selectServer).Scan(&pid, &fsync, &synchronous, &isStandby, &migrated)
	switch {
	case err != nil:
		return false, translate(err)
	case !migrated:
		return false, migrations.Check(migrations.Postgres, 0)
	case isStandby:
		return false, fmt.Errorf("%w: the server is a standby", sqlstore.ErrUnavailable)
	case !options.AllowLoss && (fsync == "off" || synchronous == "off"):
		return false, fmt.Errorf("the server may lose commits: fsync is %s, synchronous_commit is %s", fsync, synchronous)
	}
	var version migrations.Version
	var dirty bool
	if err := conn.QueryRow(ctx, migrations.SelectVersion).Scan(&version, &dirty); err != nil {
		return false, translate(err)
	}
	// A pooler makes up the process ID that it gives its clients.
	return pid != conn.PgConn().PID(), migrations.Check(migrations.Postgres, version)
}
