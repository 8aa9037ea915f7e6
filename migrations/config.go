package migrations

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// connectTimeout is the time in which one host must accept a connection, unless the
	// endpoint sets connect_timeout.
	connectTimeout = 3 * time.Second

	// TCP keepalives end an idle connection whose peer does not answer for about 25 seconds.
	keepAliveIdle     = 10 * time.Second
	keepAliveInterval = 5 * time.Second
	keepAliveCount    = 3
	// userTimeout is how long sent data may be unacknowledged; see setUserTimeout.
	userTimeout = 15 * time.Second
)

// ParseDSN parses an endpoint: a URL, or keywords and values, which may have parameters of the pool. The
// BeforeConnect of the configuration calls RefreshCredentials with the endpoint.
func ParseDSN(dsn string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	setDefaults(config.ConnConfig)
	if err := readPasswordFile(config.ConnConfig); err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error { return RefreshCredentials(dsn, c) }
	return config, nil
}

const (
	// replayTime is how long Connect waits for a standby, and replayPause is the time between two attempts.
	replayTime  = 10 * time.Second
	replayPause = 200 * time.Millisecond
)

// Connect is pgx.ConnectConfig for the first connection of a program. Where the endpoint names several hosts, it waits
// for the database for a while: pgx does not go on to the next host if one does not have the database, and a standby
// may not have replayed the statement that made it. Of two primaries it takes the one on the higher timeline; see
// FollowPrimaries, which it calls.
func Connect(ctx context.Context, config *pgx.ConnConfig) (*pgx.Conn, error) {
	FollowPrimaries(ctx, config, slog.New(slog.DiscardHandler))
	ends := time.Now().Add(replayTime)
	for {
		conn, err := pgx.ConnectConfig(ctx, config)
		var refused *pgconn.PgError
		mayBeStandby := errors.As(err, &refused) && refused.Code == codeInvalidCatalogName && strings.Contains(Address(config), ",")
		if !mayBeStandby || time.Now().After(ends) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(replayPause):
		}
	}
}

func setDefaults(config *pgx.ConnConfig) {
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "byre"
	}
	config.RuntimeParams["client_encoding"] = "UTF8" // all that pgx speaks, whatever the role's setting is
	config.ConnectTimeout = cmp.Or(config.ConnectTimeout, connectTimeout)
	validate := config.ValidateConnect
	if validate == nil { // target_session_attrs=any, which is the default of libpq
		validate = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	pgpool := &pgpoolCheck{}
	config.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		// First, because Pgpool-II may ask a standby whether it is read-only.
		if err := pgpool.validate(ctx, conn); err != nil {
			return err
		}
		return validate(ctx, conn)
	}
	config.DialFunc = (&net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount,
		},
		Control: setUserTimeout,
	}).DialContext
}
