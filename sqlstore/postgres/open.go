package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"byre/migrations"
	"byre/sqlstore"
)

// Options of a Driver. The zero value of each field means its default.
type Options struct {
	// LockTimeout is how long a batch waits for the writers' lock; the default is 5
	// seconds. After that the driver terminates the session that holds the lock, if that
	// session is idle.
	LockTimeout time.Duration
	// CommitTimeout is how long a batch may take in addition to LockTimeout; the default
	// is 10 seconds. Half of it is for the statement that writes: if that takes longer,
	// the batch fails and changes nothing. A COMMIT that takes longer has an unknown
	// outcome.
	CommitTimeout time.Duration
	// ReadTimeout is how long a read waits for a connection, and for each row of the
	// server; the default is 5 seconds.
	ReadTimeout time.Duration
	// AllowLoss accepts a server with fsync or synchronous_commit off, which may lose
	// commits when it crashes.
	AllowLoss bool
	// Logger logs new epochs, and what an operator should change on the server. By
	// default nothing is logged.
	Logger *slog.Logger
	// Registerer registers the metrics of Open; nil registers none.
	Registerer prometheus.Registerer
}

func (o Options) withDefaults() Options {
	o.LockTimeout = cmp.Or(o.LockTimeout, 5*time.Second)
	o.CommitTimeout = cmp.Or(o.CommitTimeout, 10*time.Second)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, 5*time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Driver implements sqlstore.Driver and sqlstore.Shared.
type Driver struct {
	server server
	// isAlone is true while this process knows that no other one uses the database.
	isAlone atomic.Bool
	lineage lineage
	waiting batchWait
	// known has the sqlstore.Resources that this process knows to have an id.
	known sync.Map
}

var (
	_ sqlstore.Driver = (*Driver)(nil)
	_ sqlstore.Shared = (*Driver)(nil)
)

// Open connects to a database. dsn is a connection string of pgx: a URL, or keywords and
// values. The caller closes the driver. Open begins a new epoch if the database is not the one that
// the epoch began on; see followInstance.
func Open(ctx context.Context, dsn string, options Options) (*Driver, error) {
	d, err := OpenWithoutServing(ctx, dsn, options)
	if err != nil {
		return nil, err
	}
	// This connection may take longer than the deadline of followInstance, which then finds it in the pool.
	if err = d.server.translate(d.server.writes.Ping(ctx)); err == nil {
		err = d.followInstance(ctx, lastSeen{})
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	promauto.With(options.Registerer).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "byre_store_refused_primaries",
		Help: "PostgreSQL servers that take writes although a standby was promoted in their place, which byre refused within an hour.",
	}, func() float64 { return float64(d.server.primaries.Refused()) })
	return d, nil
}

// OpenWithoutServing is Open for a process that serves no clients. It begins no epoch: the
// next process that serves clients does.
func OpenWithoutServing(ctx context.Context, dsn string, options Options) (*Driver, error) {
	options = options.withDefaults()
	config, err := parsePool(dsn)
	if err != nil {
		return nil, err
	}
	primaries := migrations.FollowPrimaries(ctx, config.ConnConfig, options.Logger)
	pooled, err := inspect(ctx, config.ConnConfig, options)
	if err != nil {
		return nil, err
	}
	switch mode := &config.ConnConfig.DefaultQueryExecMode; {
	case pooled && *mode == pgx.QueryExecModeCacheStatement:
		*mode = pgx.QueryExecModeExec
	case pooled && *mode == pgx.QueryExecModeDescribeExec:
		// It sends a statement and its execution apart, between which a pooler gives the session to other clients.
		return nil,
			fmt.Errorf(
				"PostgreSQL at %s is behind a pooler, where default_query_exec_mode=describe_exec may execute the statement "+
					"of another client: remove it from the endpoint", migrations.Address(config.ConnConfig))
	}
	d := &Driver{
		server:  server{options: options, config: config.ConnConfig, refresh: config.BeforeConnect, primaries: primaries},
		lineage: lineage{following: make(chan struct{}, 1)},
	}
	if err := d.server.openPools(ctx, config); err != nil {
		return nil, errors.Join(fmt.Errorf("endpoint: %w", err), d.Close())
	}
	return d, nil
}

// parsePool parses a connection string, with the defaults of the pool for reads.
func parsePool(dsn string) (*pgxpool.Config, error) {
	config, err := migrations.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	if !strings.Contains(dsn, "pool_max_conns") {
		config.MaxConns = defaultReads
	}
	if !strings.Contains(dsn, "pool_max_conn_idle_time") {
		config.MaxConnIdleTime = defaultIdleTime
	}
	if !strings.Contains(dsn, "pool_health_check_period") {
		config.HealthCheckPeriod = defaultCheckPeriod
	}
	return config, nil
}

// Close implements sqlstore.Driver. It waits until all connections are released.
func (d *Driver) Close() error {
	for _, pool := range d.server.pools() {
		pool.Close()
	}
	return nil
}

// isNeon reports whether commits are durable although fsync is off, because they wait for Neon's
// safekeepers, which have the write-ahead log. Neon sends the log to them as to a synchronous
// standby, and has settings of its own. See https://neon.com/docs/introduction/architecture-overview.
func isNeon(timeline, synchronous, standbys string) bool {
	return timeline != "" && standbys == "walproposer" && synchronous != "local" && synchronous != "off"
}

// inspect fails if the driver can't use the server or the schema. pooled is true if the
// connection leads to a pooler in front of the server.
func inspect(ctx context.Context, config *pgx.ConnConfig, options Options) (pooled bool, err error) {
	config = config.Copy()
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false, fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, migrations.Explain(config, err))
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	schema, err := migrations.PostgresSchema(ctx, conn)
	if err == nil && schema.Version == 0 {
		err = migrations.Check(migrations.Postgres, schema)
	}
	if err != nil {
		return false, err
	}
	var (
		pid                              uint32
		fsync, synchronous, quorum, neon string
		encoding                         string
		standby                          bool
		standbys                         int
	)
	err = conn.QueryRow(ctx, selectServer).Scan(&pid, &fsync, &synchronous, &quorum, &neon, &standbys, &standby, &encoding)
	if err != nil {
		return false, migrations.Explain(config, err)
	}
	switch {
	case standby:
		return false, fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, migrations.Explain(config, pgconn.ErrStandbyConnection))
	case encoding != "UTF8" && encoding != "SQL_ASCII":
		return false, fmt.Errorf("the database has the encoding %s, which lacks characters that objects may have: "+
			"use one that was created with ENCODING 'UTF8'", encoding)
	case !options.AllowLoss && (fsync == "off" && !isNeon(neon, synchronous, quorum) || synchronous == "off"):
		return false, fmt.Errorf("the server may lose commits: fsync is %s, synchronous_commit is %s", fsync, synchronous)
	}
	if hosts := strings.Count(migrations.Address(config), ",") + 1; (hosts > 1 || standbys > 0) &&
		(quorum == "" || synchronous == "local") {
		options.Logger.Warn("postgres: no standby is synchronous: a failover may lose acknowledged writes; "+
			"set synchronous_standby_names on the server",
			"hosts", hosts, "standbys", standbys, "synchronous_standby_names", quorum, "synchronous_commit", synchronous)
	}
	// A pooler gives its clients a process ID of its own, not that of the server's session.
	return pid != conn.PgConn().PID(), migrations.Check(migrations.Postgres, schema)
}
