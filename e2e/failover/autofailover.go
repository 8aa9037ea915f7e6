package failover

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
)

// autoFailoverTimeout is how long pg_auto_failover takes to check a node
// (pgautofailover.health_check_period) and to call it unhealthy
// (pgautofailover.node_considered_unhealthy_timeout). Then it waits until an old primary that it can't
// reach has surely stopped by itself (pgautofailover.primary_demote_timeout).
const autoFailoverTimeout = (5 + 20 + 30) * time.Second

// newAutoFailover starts pg_auto_failover: a monitor and two nodes, which byre's endpoint names.
func newAutoFailover(s *site, isSynchronous bool) *cluster {
	s.Helper()
	c := &cluster{site: s, timeout: autoFailoverTimeout, isSynchronous: isSynchronous}
	port := s.takePort()
	monitor := "127.0.0.1:" + port
	s.mustStart("monitor", "/bin/sh", "-ec", s.settings("On the monitor",
		"/var/lib/postgresql/monitor", s.dir+"/monitor", "--pgport 5432", "--pgport "+port,
		"mon.example.com", "127.0.0.1", "scram-sha-256", "trust"))
	tuning := s.settings("On the monitor, in another shell", "mon.example.com:5432", monitor)
	if err := c.await(s.Context(), "the monitor answers", func() (bool, error) {
		err := s.runScript(s.Context(), tuning)
		return err == nil, err
	}); err != nil {
		s.Fatal(err)
	}
	var addresses []string
	var first string
	for i, name := range []string{"db1", "db2"} {
		n := s.newNode(name)
		host := fmt.Sprintf("127.0.0.%d", i+2)
		n.store, n.inbound = links{s.newLink(monitor)}, s.newLinkAt(net.JoinHostPort(host, n.port), n.address())
		data, bin := n.addHost(s)
		if first == "" {
			first = data
		}
		programs := "export PG_CONFIG=" + filepath.Join(bin, "pg_config") + "\n"
		replace := []string{
			"/var/lib/postgresql/byre", data, "--pgport 5432", "--pgport " + n.port,
			"--hostname db1.example.com", "--hostname " + host + " --listen 127.0.0.1", "--name db1", "--name " + name,
			"mon.example.com:5432", n.store.addresses(), "10.0.0.0/8", "127.0.0.1/32",
			"hostssl byre byre", "host replication all 127.0.0.1/32 trust\nhost all all", //nolint:dupword // database and role
			"scram-sha-256", "trust",
		}
		if !isSynchronous {
			replace = append(replace, "--ssl-self-signed", "--ssl-self-signed --replication-quorum false")
		}
		if err := s.runScript(s.Context(), programs+s.settings("On each server of PostgreSQL", replace...)); err != nil {
			s.Fatal(err)
		}
		run := programs + s.settings("On each server of PostgreSQL, by its service", "/var/lib/postgresql/byre", data)
		n.start = func() (*process, error) { return s.start(name, "/bin/sh", "-ec", run) }
		if err := n.resume(); err != nil {
			s.Fatal(err)
		}
		c.nodes, addresses = append(c.nodes, n), append(addresses, n.address())
	}
	c.endpoint = dsn(serverRole, serverRole, "", addresses...)
	c.isSteady = func(ctx context.Context) (bool, error) { return isSteady(ctx, monitor) }
	c.switchover = func(ctx context.Context, _ *node) error {
		_, err := s.run(ctx, "pg_autoctl", "perform", "switchover", "--pgdata", first)
		return err
	}
	return c
}

// isSteady reports whether both nodes are in the state that the monitor wants, and one is the
// primary. The monitor replaces no primary that is not in that state yet.
func isSteady(ctx context.Context, monitor string) (isSteady bool, err error) {
	conn, err := pgx.Connect(ctx, dsn(superuser, "pg_auto_failover", "", monitor))
	if err != nil {
		return false, err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, `
SELECT bool_and(reportedstate = goalstate AND health = 1) AND array_agg(goalstate::text ORDER BY goalstate::text) = '{primary,secondary}'
FROM pgautofailover.node`).Scan(&isSteady)
	return isSteady, err
}
