package dbserver

import (
	"cmp"
	"context"
	"fmt"
	"net"
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

// Parse parses an endpoint: a URL, or keywords and values, which may have parameters of the pool. The
// BeforeConnect of the configuration calls RefreshCredentials with the endpoint.
func Parse(dsn string) (*pgxpool.Config, error) {
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

func setDefaults(config *pgx.ConnConfig) {
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "byre"
	}
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
