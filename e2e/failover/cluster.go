package failover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"byre/e2e/failover/processes"
	"byre/e2e/robustness"
	"byre/sqlstore/postgres/pgtest"
)

// node is a server of PostgreSQL with its manager.
type node struct {
	name, port string
	// proxy or inbound is how the other nodes, and a monitor, reach the server; both are nil where the manager gives
	// them its own address.
	proxy   *pgtest.Proxy
	inbound *link
	// store are the ways to the manager's etcd or monitor; nil where there are none.
	store links
	// clock is the file that sets the server's clock, and disk that with its data; neither where there is none.
	clock string
	disk  *pgtest.Disk
	// start starts the manager, which starts the server.
	start   func() (*process, error)
	process *process
}

// address is that of the server, without the proxy.
func (n *node) address() string { return net.JoinHostPort("127.0.0.1", n.port) }

// dsn is that of a database of the server for a role.
func (n *node) dsn(role, database string) string { return dsn(role, database, "", n.address()) }

func dsn(role, database, parameters string, addresses ...string) string {
	u := url.URL{Scheme: "postgres", User: url.User(role), Host: strings.Join(addresses, ","), Path: "/" + database,
		RawQuery: "connect_timeout=1&sslmode=disable" + parameters}
	return u.String()
}

// newNode makes a node that is not started.
func (s *site) newNode(name string) *node { return &node{name: name, port: s.takePort()} }

// newProxiedNode makes a node with a proxy that is not started.
func (s *site) newProxiedNode(name string) *node {
	n := s.newNode(name)
	n.proxy = pgtest.NewProxy(s, n.dsn(superuser, "postgres"))
	return n
}

// proxyAddress is how the other nodes reach the server.
func (n *node) proxyAddress() (host, port string) {
	u, err := url.Parse(n.proxy.DSN())
	if err != nil {
		return "", "" // the proxy has made it
	}
	return u.Hostname(), u.Port()
}

// resume starts the node again after kill.
func (n *node) resume() (err error) {
	n.process, err = n.start()
	return err
}

// startAll starts all nodes of a cluster, one after another.
func (s *site) startAll(nodes []*node) {
	s.Helper()
	for _, n := range nodes {
		if err := n.resume(); err != nil {
			s.Fatal(err)
		}
	}
}

const (
	// superuser is the role of the managers, and serverRole that of byre, which owns the database of
	// the same name.
	superuser, serverRole = "postgres", "byre"
)

// cluster is a primary and its standbys, with what stands before them.
type cluster struct {
	*site
	nodes []*node
	// endpoint is byre's.
	endpoint string
	// timeout is how long the manager takes at most until it has replaced a primary that is
	// lost, as it is configured.
	timeout time.Duration
	// etcd is Patroni's; nil without Patroni.
	etcd *etcd
	// isSynchronous says that a commit waits for a standby.
	isSynchronous bool
	// takeover is how long the longest awaitReplaced of a fault took.
	takeover time.Duration
	// leavesOld says that the manager does not take back a primary that it has replaced.
	leavesOld bool
	// isSteady reports whether the manager has completed what it does; nil where that is seen on
	// the servers.
	isSteady func(ctx context.Context) (bool, error)
	// switchover makes a standby the primary.
	switchover func(ctx context.Context, primary *node) error
}

// direct is the DSN of the primary without what stands before it.
func (c *cluster) direct() string {
	var addresses []string
	for _, n := range c.nodes {
		addresses = append(addresses, n.address())
	}
	return dsn(serverRole, serverRole, "&target_session_attrs=read-write", addresses...)
}

// database is the cluster for package robustness.
func (c *cluster) database() *robustness.Database {
	return &robustness.Database{Kind: robustness.Postgres, Endpoint: c.endpoint, DSN: c.direct()}
}

// execute executes statements in a database of the server as superuser.
func (n *node) execute(ctx context.Context, database string, statements ...string) error {
	conn, err := pgx.Connect(ctx, n.dsn(superuser, database))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// status is what a server says of itself.
type status struct {
	isPrimary bool
	// streaming counts the standbys that stream from it, synchronous those that commits wait for.
	streaming, synchronous int
}

const attemptTimeout = 2 * time.Second

func (n *node) status(ctx context.Context) (s status, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, n.dsn(superuser, "postgres"))
	if err != nil {
		return s, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = conn.QueryRow(ctx, `
SELECT NOT pg_is_in_recovery(), count(*) FILTER (WHERE state = 'streaming'), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum'))
FROM pg_stat_replication WHERE application_name <> 'pg_basebackup'`).Scan(&s.isPrimary, &s.streaming, &s.synchronous)
	return s, err
}

// time is that of the server's clock.
func (n *node) time(ctx context.Context) (t time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, n.dsn(superuser, "postgres"))
	if err != nil {
		return t, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&t)
	return t, err
}

// poll is the time between two questions to a server.
const poll = 200 * time.Millisecond

// await calls is until it is true. what is for the error.
func (c *cluster) await(ctx context.Context, what string, is func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for {
		ok, err := is()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("waiting until %s: %w", what, ctx.Err()), err)
		case <-time.After(poll):
		}
	}
}

// awaitHealthy waits until one node is the primary and all others follow it, and returns it.
func (c *cluster) awaitHealthy(ctx context.Context) (primary *node, err error) {
	err = c.await(ctx, "one node is the primary, and all others stream from it", func() (bool, error) {
		primary = nil
		var errs []error
		isWhole := false
		for _, n := range c.nodes {
			s, err := n.status(ctx)
			errs = append(errs, err)
			if !s.isPrimary {
				continue
			}
			if primary != nil {
				return false, fmt.Errorf("%s and %s are primaries", primary.name, n.name)
			}
			primary = n
			isWhole = s.streaming == len(c.nodes)-1 && (s.synchronous > 0 || !c.isSynchronous)
		}
		err := errors.Join(errs...)
		if primary == nil || !isWhole || err != nil || c.isSteady == nil {
			return primary != nil && isWhole && err == nil, err
		}
		return c.isSteady(ctx)
	})
	return primary, err
}

// awaitReplaced waits until another node than old is a primary.
func (c *cluster) awaitReplaced(ctx context.Context, old *node) (primary *node, err error) {
	begin := time.Now()
	err = c.await(ctx, "another node than "+old.name+" is the primary", func() (bool, error) {
		for _, n := range c.nodes {
			if n == old {
				continue
			}
			if s, err := n.status(ctx); err == nil && s.isPrimary {
				primary = n
				return true, nil
			}
		}
		return false, nil
	})
	if err == nil {
		c.takeover = max(c.takeover, time.Since(begin))
	}
	return primary, err
}

// prepare makes byre's role and database.
func (c *cluster) prepare(ctx context.Context) error {
	primary, err := c.awaitHealthy(ctx)
	if err != nil {
		return err
	}
	if err := primary.execute(ctx, "postgres", `CREATE ROLE byre LOGIN PASSWORD 'PASSWORD'`,
		`CREATE DATABASE byre OWNER byre`); err != nil {
		return err
	}
	// At its start HAProxy leads to all servers in turn, until its checks have failed.
	inRow := 0
	if err := c.await(ctx, "the endpoint leads to the primary", func() (bool, error) {
		isPrimary, err := leadsToPrimary(ctx, c.endpoint+"&target_session_attrs=read-write")
		inRow++
		if !isPrimary {
			inRow = 0
		}
		return inRow > 2*len(c.nodes), err
	}); err != nil {
		return err
	}
	// A client that meets a host without the database does not try the next one.
	return c.await(ctx, "every standby has the database", func() (bool, error) {
		for _, n := range c.nodes {
			if err := n.execute(ctx, serverRole); err != nil {
				return false, err
			}
		}
		return true, nil
	})
}

func leadsToPrimary(ctx context.Context, dsn string) (isPrimary bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return false, err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // PgBouncer prepares nothing
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = conn.QueryRow(ctx, `SELECT NOT pg_is_in_recovery()`).Scan(&isPrimary)
	return isPrimary, err
}

// recordEpochs has the database record the last revision before each new epoch, in the transaction that
// begins it. byre must have migrated the database.
func (c *cluster) recordEpochs(ctx context.Context) error {
	primary, err := c.awaitHealthy(ctx)
	if err != nil {
		return err
	}
	return primary.execute(ctx, serverRole,
		`CREATE TABLE epochs (common bigint)`,
		`GRANT ALL ON epochs TO byre`,
		`CREATE FUNCTION record_epoch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO epochs SELECT revision FROM counters; RETURN NEW; END $$`,
		`CREATE TRIGGER record_epoch BEFORE UPDATE OF epoch ON store FOR EACH ROW EXECUTE FUNCTION record_epoch()`)
}

// epochs are the revisions before each epoch that has begun since recordEpochs.
func (c *cluster) epochs(ctx context.Context) (common []int64, err error) {
	conn, err := pgx.Connect(ctx, c.direct())
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, `SELECT common FROM epochs ORDER BY common`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

// server returns the first process of the node's server.
func (n *node) server() (found processes.Process, err error) {
	all, err := n.process.all()
	if err != nil {
		return found, err
	}
	for _, p := range all {
		// The other processes of the server have another title.
		if p.Name == "postgres" && strings.Contains(p.Title, "-D ") {
			return p, nil
		}
	}
	return found, fmt.Errorf("the server of %s does not run", n.name)
}

// killServer kills the first process of the server; the others end then.
func (n *node) killServer() error {
	p, err := n.server()
	if err != nil {
		return err
	}
	return processes.Signal([]processes.Process{p}, syscall.SIGKILL)
}
