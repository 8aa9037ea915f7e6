package failover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// pgpoolTimeout is how long Pgpool-II takes to check a server that is silent (health_check_period, and
// health_check_timeout for each of two attempts, health_check_retry_delay between them), and to find the new primary.
const pgpoolTimeout = (2 + 3 + 1 + 3 + 5) * time.Second

// newPgpool starts a primary and a standby, which Pgpool-II watches and promotes. byre's endpoint names
// Pgpool-II, which sends all statements to the primary.
func newPgpool(s *site, isSynchronous bool) *cluster {
	s.Helper()
	return startPgpool(s, isSynchronous)
}

// startPgpool starts the servers and Pgpool-II, in whose settings it replaces some more texts.
func startPgpool(s *site, isSynchronous bool, replace ...string) *cluster {
	s.Helper()
	c := &cluster{site: s, timeout: pgpoolTimeout, isSynchronous: isSynchronous, leavesOld: true}
	s.scriptTurnOff()
	for _, name := range []string{"db1", "db2"} {
		n := s.newProxiedNode(name)
		n.start = func() (*process, error) { return c.startBehindPgpool(n) }
		c.nodes = append(c.nodes, n)
	}
	first, second := c.nodes[0], c.nodes[1]
	settings := []string{"/var/lib/postgresql/15/byre", s.dir + "/db1",
		"'*'\nwal", "'127.0.0.1'\nunix_socket_directories = '" + s.dir + "'\nwal",
		"10.0.0.0/8", "127.0.0.1/32", "scram-sha-256", "trust"}
	if !isSynchronous {
		settings = append(settings, "synchronous_standby_names = '*'", "")
	}
	clone := s.settings("On db2: the standby behind Pgpool-II", "/var/lib/postgresql/15/byre", s.dir+"/db2",
		"host=db1.example.com port=5432", first.proxyHost())
	steps := []func() error{
		func() error {
			return s.runScript(s.Context(), s.settings("On db1: the first server behind Pgpool-II", settings...))
		},
		first.resume,
		func() error { return c.awaitAnswer(first) },
		func() error { return s.runScript(s.Context(), clone) },
		second.resume,
		func() error { return c.awaitAnswer(second) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			s.Fatal(err)
		}
	}
	promote := s.script("fence-and-promote", s.settings("/etc/pgpool2/fence-and-promote", ".example.com", ""))
	port := s.takePort()
	replace = append(replace, "port = 9999", "port = "+port, "/var/run/postgresql", s.dir, "/var/log/postgresql", s.dir,
		"db1.example.com'\nbackend_port0 = 5432", "127.0.0.1'\nbackend_port0 = "+first.port,
		"db2.example.com'\nbackend_port1 = 5432", "127.0.0.1'\nbackend_port1 = "+second.port,
		"/etc/pgpool2/fence-and-promote", promote)
	config := s.write("pgpool.conf", s.settings("/etc/pgpool2/pgpool.conf", replace...)+"pcp_port = "+s.takePort()+"\n")
	empty := s.write("empty.conf", "")
	s.mustStart("pgpool", s.program("pgpool"), "-n", "-D", "-f", config, "-F", empty, "-a", empty)
	c.endpoint = dsn(serverRole, serverRole, "", "127.0.0.1:"+port)
	nodes := dsn(superuser, "postgres", "", "127.0.0.1:"+port)
	c.isSteady = func(ctx context.Context) (bool, error) { return areAttached(ctx, nodes, len(c.nodes)) }
	c.switchover = func(ctx context.Context, primary *node) error {
		// Pgpool-II turns the server off before pg_ctl has seen it stop.
		if _, err := s.run(ctx, "pg_ctl", "stop", "--no-wait", "-m", "fast", "-D", s.dir+"/"+primary.name); err != nil {
			return err
		}
		if _, err := c.awaitReplaced(ctx, primary); err != nil {
			return err
		}
		return errors.Join(primary.process.kill(), primary.resume())
	}
	return c
}

// startBehindPgpool starts the server. If another node is the primary by now, the server follows that one.
func (c *cluster) startBehindPgpool(n *node) (*process, error) {
	data, begin, then := c.dir+"/"+n.name, "", ""
	for _, other := range c.nodes {
		if s, err := other.status(c.Context()); other != n && err == nil && s.isPrimary && n.process != nil {
			begin = c.settings("On an old primary behind Pgpool-II", "/var/lib/postgresql/15/byre", data,
				"host=db2.example.com port=5432", other.proxyHost(), "application_name=db1", "application_name="+n.name)
			if c.isSynchronous {
				then = c.settings("On an old primary behind Pgpool-II: when PostgreSQL runs", "host=db2.example.com port=5432", other.host())
			}
		}
	}
	script := fmt.Sprintf("%s\npostgres -D %s -p %s &\n%s\nwait", begin, data, n.port, then)
	return c.start(n.name, "/bin/sh", "-ec", script)
}

// proxyHost is the address of the node's proxy in a connection string.
func (n *node) proxyHost() string {
	host, port := n.proxyAddress()
	return "host=" + host + " port=" + port
}

// awaitAnswer waits until a server answers.
func (c *cluster) awaitAnswer(n *node) error {
	return c.await(c.Context(), n.name+" answers", func() (bool, error) {
		_, err := n.status(c.Context())
		return err == nil, err
	})
}

// areAttached reports whether Pgpool-II uses all servers.
func areAttached(ctx context.Context, dsn string, nodes int) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return false, err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // other statements go to PostgreSQL
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, _ := conn.Query(ctx, `SHOW POOL_NODES`) // CollectRows returns the error
	up, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (bool, error) {
		values, err := row.Values()
		return err == nil && values[3] == "up", err
	})
	attached := 0
	for _, isUp := range up {
		if isUp {
			attached++
		}
	}
	return attached == nodes, err
}
