package migrations

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// pgpoolKey is the key of a connection's custom data that marks one that leads to Pgpool-II.
const pgpoolKey = "Pgpool-II"

// LeadsToPgpool reports whether a connection leads to Pgpool-II. Such a connection has the process ID of a
// session of the first server, even where another one is the primary.
func LeadsToPgpool(conn *pgconn.PgConn) bool { return conn.CustomData()[pgpoolKey] != nil }

// pgpoolSettings are the settings of Pgpool-II with which it passes each statement on to the primary and
// nowhere else; versions tell a value by its name or by a number. With others a read may come from a standby
// that is behind, or from a cache.
var pgpoolSettings = map[string][]string{
	"backend_clustering_mode": {"streaming_replication", "1"},
	"load_balance_mode":       {"off", "0"},
	"memory_cache_enabled":    {"off", "0"},
}

// pgpoolCheck refuses new connections to a Pgpool-II that may read from another server than the primary.
//
// Pgpool-II answers SHOW POOL_STATUS itself; PostgreSQL refuses it and logs an error. Therefore the check asks
// only where something stands between, which the server shows by another port of its client, and asks an
// address once that is not Pgpool-II. It does not notice a Pgpool-II that is reached by a Unix socket and
// reaches PostgreSQL by one.
type pgpoolCheck struct {
	// others has the addresses that something else than Pgpool-II answers.
	others sync.Map
}

func (p *pgpoolCheck) validate(ctx context.Context, conn *pgconn.PgConn) error {
	address := conn.Conn().RemoteAddr().String()
	if _, isOther := p.others.Load(address); isOther {
		return nil
	}
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
	status, err := query(ctx, conn, `SHOW POOL_STATUS`)
	var refused *pgconn.PgError
	switch {
	case errors.As(err, &refused) && refused.Code == codeUndefinedObject:
		p.others.Store(address, true)
		return nil
	case err != nil:
		return err
	}
	conn.CustomData()[pgpoolKey] = true
	return checkPgpool(status)
}

// checkPgpool checks the rows of SHOW POOL_STATUS: name, value and description.
func checkPgpool(status [][][]byte) error {
	for _, row := range status {
		name, value := string(row[0]), string(row[1])
		if values, isOurs := pgpoolSettings[name]; isOurs && !slices.Contains(values, value) {
			return fmt.Errorf("%s of Pgpool-II is %s, so that reads may not come from the primary: set "+
				"backend_clustering_mode = 'streaming_replication', load_balance_mode = off and memory_cache_enabled = off, "+
				"or name the servers in the endpoint", name, value)
		}
	}
	return nil
}

// query returns the rows of a statement, which it sends by the simple protocol.
func query(ctx context.Context, conn *pgconn.PgConn, statement string) ([][][]byte, error) {
	results, err := conn.Exec(ctx, statement).ReadAll()
	if err != nil {
		return nil, err
	}
	return results[0].Rows, nil
}
