package migrations

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
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
		mayBeStandby := errors.As(err, &refused) && refused.Code == codeInvalidCatalogName &&
			strings.Contains(Address(config), ",")
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
	var isChecked atomic.Bool // by the first connection
	config.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if !isChecked.Load() {
			// First, because Pgpool-II may ask a standby whether it is read-only.
			if err := refusePgpool(ctx, conn); err != nil {
				return err
			}
			isChecked.Store(true)
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

// maxIdentifier is the length of the longest name in PostgreSQL, in bytes. The server truncates
// longer names.
const maxIdentifier = 63

// CheckSchema fails if a name is not one of a schema that byre may use.
func CheckSchema(schema string) error {
	switch {
	case schema == "" || len(schema) > maxIdentifier || strings.ContainsRune(schema, 0):
		return fmt.Errorf("schema %q: want a name of 1 to %d bytes", schema, maxIdentifier)
	case strings.HasPrefix(schema, "pg_"), schema == "information_schema":
		return fmt.Errorf("schema %q: the name is PostgreSQL's own", schema)
	}
	return nil
}

// WithSchema returns a connection string whose sessions have only the named schema in their
// search_path. byre finds all its tables, views, locks and channels by the current schema, so that
// one database can have any number of stores. It fails if the name is not one of a schema that byre
// may use, or if the connection string names another schema.
func WithSchema(dsn, schema string) (string, error) {
	if err := CheckSchema(schema); err != nil {
		return "", err
	}
	if schema == "$user" {
		return "", errors.New("schema \"$user\": name it in search_path, or for the role")
	}
	config, err := ParseDSN(dsn)
	if err != nil {
		return "", err
	}
	if given := config.ConnConfig.RuntimeParams["search_path"]; given != "" {
		if SchemaName(config.ConnConfig) != schema {
			return "",
				fmt.Errorf("the endpoint has the search_path %s, which does not begin with the schema %q: name one of them only",
					given, schema)
		}
		return dsn, nil
	}
	path := pgx.Identifier{schema}.Sanitize()
	// libpq does not read + as a space.
	escaped := strings.ReplaceAll(url.QueryEscape(path), "+", "%20")
	switch isURL := strings.Contains(dsn, "://"); {
	case isURL && strings.Contains(dsn, "?"):
		dsn += "&search_path=" + escaped
	case isURL:
		dsn += "?search_path=" + escaped
	default:
		dsn += " search_path='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(path) + "'"
	}
	// If the connection string is unusual, the parameter may have no effect. byre must not use
	// another schema then.
	if config, err = ParseDSN(dsn); err == nil && SchemaName(config.ConnConfig) != schema {
		err = errors.New("endpoint: it takes no search_path")
	}
	return dsn, err
}

// SchemaName returns the schema that an endpoint names: the first one of its search_path. It is empty if
// the endpoint has no search_path, or one that begins with "$user": then the server decides.
func SchemaName(config *pgx.ConnConfig) string {
	path := strings.TrimSpace(config.RuntimeParams["search_path"])
	name, _, _ := strings.Cut(path, ",")
	name = strings.ToLower(strings.TrimSpace(name))
	if quoted, ok := strings.CutPrefix(path, `"`); ok {
		// A quotation mark in the name is doubled.
		const mark = "\x00"
		name, _, _ = strings.Cut(strings.ReplaceAll(quoted, `""`, mark), `"`)
		name = strings.ReplaceAll(name, mark, `"`)
	}
	if name == "$user" {
		return ""
	}
	return name
}

// DatabaseName returns the name of a store for the operator: its database, and its schema if the endpoint
// names one.
func DatabaseName(config *pgx.ConnConfig) string {
	if schema := SchemaName(config); schema != "" {
		return fmt.Sprintf("schema %q of database %q", schema, config.Database)
	}
	return fmt.Sprintf("database %q", config.Database)
}

const selectSchema = `
SELECT coalesce(current_schema(), ''), EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)`

// HasSchema reports whether the schema that the endpoint names exists. It fails if the session uses
// another one.
//
// Invariant: byre executes no statement in a session whose current schema is not the one that the
// endpoint names. The endpoint's search_path sets the current schema, and every program that opens a
// store calls HasSchema first: the server skips a schema that does not exist or that the role may
// not use, and a pooler may drop the setting. Otherwise byre would write to the store in another
// schema.
func HasSchema(ctx context.Context, conn *pgx.Conn) (bool, error) {
	config := conn.Config()
	wanted := SchemaName(config)
	var current string
	var exists bool
	if err := conn.QueryRow(ctx, selectSchema, wanted).Scan(&current, &exists); err != nil {
		return false, Explain(config, err)
	}
	switch {
	case wanted == "" && current == "":
		return false,
			fmt.Errorf("PostgreSQL at %s: no schema of the search_path exists: create it, or name one with --database-schema",
				Address(config))
	case wanted == "" || current == wanted:
		return true, nil
	case !exists:
		return false, nil
	}
	return false,
		fmt.Errorf("PostgreSQL at %s: sessions use the schema %q instead of %q: grant USAGE on the schema to %s; "+
			"behind a pooler, set search_path for the role (ALTER ROLE) or at the pooler",
			Address(config), current, wanted, pgx.Identifier{config.User}.Sanitize())
}

// passwordFile is the parameter of an endpoint that names a file with only the password, such as a
// mounted Secret or the token of a cloud's identity service. libpq has only passfile, whose lines
// have the name of the server too.
const passwordFile = "passwordfile"

// RefreshCredentials reads the files that an endpoint names again, and sets the password and the root
// certificates of the configuration of a new connection, which is the caller's own copy. pgx itself reads
// the client certificate for each connection, and the other files only when it parses the endpoint. If a
// file can't be read, the new connection fails; the existing ones keep working.
func RefreshCredentials(dsn string, config *pgx.ConnConfig) error {
	fresh, err := pgx.ParseConfig(dsn)
	if err == nil {
		err = readPasswordFile(fresh)
	}
	if err != nil {
		// The message of a ParseConfigError contains the endpoint; that of the error that it
		// wraps does not.
		if parse := new(pgconn.ParseConfigError); errors.As(err, &parse) && parse.Unwrap() != nil {
			err = parse.Unwrap()
		}
		return &explained{text: "PostgreSQL at " + Address(config) + ": " + oneLine(err.Error()) +
			": correct the file that the endpoint names", err: err}
	}
	config.Password = fresh.Password
	refreshRoots(config.TLSConfig, fresh.TLSConfig)
	// the other hosts of the endpoint
	for i, fallback := range config.Fallbacks[:min(len(config.Fallbacks), len(fresh.Fallbacks))] {
		refreshRoots(fallback.TLSConfig, fresh.Fallbacks[i].TLSConfig)
	}
	return nil
}

// refreshRoots replaces the root certificates. It keeps config itself: pgx knows the client certificate by it.
func refreshRoots(config, fresh *tls.Config) {
	if config != nil && fresh != nil { // a service file may have changed since
		config.RootCAs, config.VerifyPeerCertificate = fresh.RootCAs, fresh.VerifyPeerCertificate
	}
}

// readPasswordFile sets the password to the content of the file that the parameter passwordfile
// names, if it is set. It removes the parameter, which pgx would otherwise send to the server.
func readPasswordFile(config *pgx.ConnConfig) error {
	path, given := config.RuntimeParams[passwordFile]
	if !given {
		return nil
	}
	delete(config.RuntimeParams, passwordFile)
	password, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%s: %w", passwordFile, err)
	}
	config.Password = strings.TrimRight(string(password), "\r\n")
	return nil
}

// refusePgpool fails if a connection leads through Pgpool-II. Pgpool-II answers SHOW POOL_STATUS itself.
//
// byre refuses it because it can keep no promise there: Pgpool-II may read from a standby that is behind, or from a
// cache; it has the process ID of a session of another server than the primary; and it answers in PostgreSQL's name
// when its own connection breaks, which may be after a COMMIT.
//
// PostgreSQL refuses SHOW POOL_STATUS and logs an error. Therefore it is asked only where something stands between,
// which the server shows by another port of its client.
func refusePgpool(ctx context.Context, conn *pgconn.PgConn) error {
	seen, err := query(ctx, conn, `SELECT inet_client_port()`)
	if err != nil {
		return err
	}
	port := ""
	if local, isTCP := conn.Conn().LocalAddr().(*net.TCPAddr); isTCP {
		port = strconv.Itoa(local.Port)
	}
	if string(seen[0][0]) == port {
		return nil
	}
	_, err = query(ctx, conn, `SHOW POOL_STATUS`)
	var refused *pgconn.PgError
	switch {
	case errors.As(err, &refused) && refused.Code == codeUndefinedObject:
		return nil
	case err != nil:
		return err
	}
	return errors.New("the connection leads through Pgpool-II, which may read from a standby: " +
		"name the servers of PostgreSQL in the endpoint")
}

// query returns the rows of a statement, which it sends by the simple protocol.
func query(ctx context.Context, conn *pgconn.PgConn, statement string) ([][][]byte, error) {
	results, err := conn.Exec(ctx, statement).ReadAll()
	if err != nil {
		return nil, err
	}
	return results[0].Rows, nil
}
