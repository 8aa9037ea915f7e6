package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
)

// The names of the targets.
const (
	onSQLite   = "byre on SQLite"
	onPostgres = "byre on PostgreSQL"
	stock      = "kube-apiserver + etcd"
	empty      = "empty Go TLS server"
)

// target is one server that is measured.
type target struct {
	name   string
	server *servers.Server // nil for the empty server
	// start starts the server, with an empty store or with what an earlier process has
	// stored.
	start func(context.Context) (*servers.Server, error)
	// usage returns the usage of the server's process, storeUsage that of its database's
	// processes; storeUsage is nil if the database is in the server's process.
	usage, storeUsage func() (servers.Usage, error)
	// admin is in system:masters; ordinary is not, and priority and fairness and
	// RBAC apply to its requests.
	admin, ordinary *client

	// pods, maps and patches count the requests of each kind, so that names and values
	// never repeat.
	pods, maps, patches int

	// wardle is the sample API server behind the target, direct is its client, and proxy is
	// a bare proxy to it. All are nil outside the suite "aggregation".
	wardle *servers.Wardle
	direct *client
	proxy  *reference
}

func dialer() *net.Dialer { return &net.Dialer{KeepAlive: 30 * time.Second} }

// The plugin ServiceAccount requires a default service account, which only a
// kube-controller-manager makes for a stock kube-apiserver.
const withoutServiceAccounts = "--disable-admission-plugins=ServiceAccount"

func byreTarget(name, dir, endpoint string, cluster *pgtest.Cluster) *target {
	t := &target{name: name,
		start: servers.Byre{Dir: filepath.Join(dir, name), Endpoint: endpoint, Args: []string{withoutServiceAccounts}}.Start}
	if cluster != nil {
		t.storeUsage = func() (servers.Usage, error) {
			pid, err := cluster.PID()
			if err != nil {
				return servers.Usage{}, err
			}
			return servers.TreeUsage(pid)
		}
	}
	return t
}

func stockTarget(dir string, aggregates bool) *target {
	t := &target{name: stock}
	t.start = servers.Stock{Dir: filepath.Join(dir, "stock"), Args: []string{withoutServiceAccounts},
		Aggregates: aggregates}.Start
	t.storeUsage = func() (servers.Usage, error) { return t.server.Beside[0].Usage() }
	return t
}

// emptyResponseSize is about the size of a Pod in JSON.
const emptyResponseSize = 5_000

// jsonEventSize and protobufEventSize are the bytes of the events of watched Pods.
const (
	jsonEventSize     = 7_630
	protobufEventSize = 5_980
)

func emptyTarget(r *reference) *target {
	return &target{
		name: empty, admin: r.client, ordinary: r.client,
		usage: func() (servers.Usage, error) { return servers.ProcessUsage(r.pid()) },
	}
}

// open starts the server and creates its clients.
func (t *target) open(ctx context.Context) error {
	s, err := t.start(ctx)
	if err != nil {
		return fmt.Errorf("start %s: %w", t.name, err)
	}
	t.server, t.usage = s, s.Usage
	if t.admin, err = newClient(s, servers.AdminToken); err != nil {
		return err
	}
	t.ordinary, err = newClient(s, servers.AliceToken)
	return err
}

// restart stops the server with SIGTERM, as an operator does, and starts it with what it has
// stored.
func (t *target) restart(ctx context.Context) error {
	if err := t.server.Stop(); err != nil {
		return fmt.Errorf("stop %s: %w", t.name, err)
	}
	return t.open(ctx)
}

// crash kills the server and starts it with what it has stored.
func (t *target) crash(ctx context.Context) error {
	t.server.Kill()
	return t.open(ctx)
}

// stop kills the server: its store is not needed any more, and a stock pair would take long
// to stop by itself.
func (t *target) stop() error {
	if t.server != nil {
		t.server.Kill()
	}
	return nil
}

// used returns the usage of the server's process and of its database's processes.
func (t *target) used() (server, store servers.Usage, err error) {
	if server, err = t.usage(); err != nil || t.storeUsage == nil {
		return server, store, err
	}
	store, err = t.storeUsage()
	return server, store, err
}

// usedBy returns the processor time that the server and its store take while work runs.
func (t *target) usedBy(work func() error) (server, store time.Duration, err error) {
	before, storeBefore, err := t.used()
	if err != nil {
		return 0, 0, err
	}
	if err := work(); err != nil {
		return 0, 0, err
	}
	after, storeAfter, err := t.used()
	return after.CPU - before.CPU, storeAfter.CPU - storeBefore.CPU, err
}

// awaitQuiet waits until the servers have finished the work that follows requests, so that
// it does not count in another server's turn. It waits at most 10 s.
func awaitQuiet(ctx context.Context, targets []*target) error {
	const interval, most, patience = 250 * time.Millisecond, 40 * time.Millisecond, 10 * time.Second
	used := func() (all time.Duration, err error) {
		for _, t := range targets {
			server, store, err := t.used()
			if err != nil {
				return 0, err
			}
			all += server.CPU + store.CPU
		}
		return all, nil
	}
	before, err := used()
	for begun := time.Now(); err == nil && time.Since(begun) < patience; {
		if err := sleep(ctx, interval); err != nil {
			return err
		}
		var now time.Duration
		if now, err = used(); err == nil && now-before < most {
			return nil
		}
		before = now
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
