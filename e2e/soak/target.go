package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
)

// kind is a server with a database.
type kind struct {
	short, name   string
	suites        []string
	needsPostgres bool
	start         func(ctx context.Context, dir string, postgres *pgtest.Cluster) (*target, error)
}

const (
	onSQLite       = "byre on SQLite"
	onPostgres     = "byre on PostgreSQL"
	onKineSQLite   = "kube-apiserver + kine on SQLite"
	onKinePostgres = "kube-apiserver + kine on PostgreSQL"
	onEtcd         = "kube-apiserver + etcd"
)

var kinds = []kind{
	{"sqlite", onSQLite, []string{clusterSuite, k0smotronSuite}, false, startOnSQLite},
	{"postgres", onPostgres, []string{clusterSuite, k0smotronSuite}, true, startOnPostgres},
	{"stock", onEtcd, []string{clusterSuite, k0smotronSuite}, false, startStock},
	{"kine-sqlite", onKineSQLite, []string{k0smotronSuite}, false, startOnKineSQLite},
	{"kine-postgres", onKinePostgres, []string{k0smotronSuite}, true, startOnKinePostgres},
}

func (k kind) isIn(suite, only string) bool {
	return slices.Contains(k.suites, suite) && (only == "" || slices.Contains(strings.Split(only, ","), k.short))
}

// postgresDefaults are PostgreSQL's own, in place of those of pgtest, which are for tests.
// max_connections stays at a thousand, because kine does not bound its connections.
var postgresDefaults = []string{"shared_buffers=128MB", "max_wal_size=1GB", "autovacuum_naptime=1min"}

// target is a server that is measured.
type target struct {
	name   string
	server *servers.Server
	// replicas share the database of the server.
	replicas []*servers.Server
	// store is what the processes of its database use; nil where the database is in the
	// server's process.
	store func() (servers.Usage, error)
	// size is that of its database.
	size func(context.Context) (int64, error)
}

func startOnSQLite(ctx context.Context, dir string, _ *pgtest.Cluster) (*target, error) {
	server, err := servers.Byre{Dir: filepath.Join(dir, "byre")}.Start(ctx)
	return &target{name: onSQLite, server: server, size: fileSize(filepath.Join(dir, "byre", "byre.db"))}, err
}

func startOnPostgres(ctx context.Context, dir string, postgres *pgtest.Cluster) (*target, error) {
	endpoint := postgres.DSN("postgres")
	server, err := servers.Byre{Dir: filepath.Join(dir, "byre"), Endpoint: endpoint}.Start(ctx)
	return &target{name: onPostgres, server: server, store: treeOf(postgres), size: databaseSize(endpoint)}, err
}

func startStock(ctx context.Context, dir string, _ *pgtest.Cluster) (*target, error) {
	server, err := servers.Stock{Dir: dir}.Start(ctx)
	if err != nil {
		return nil, err
	}
	return &target{name: onEtcd, server: server, store: server.Beside[0].Usage,
		size: fileSize(filepath.Join(dir, "etcd", "member", "snap", "db"))}, nil
}

func startOnKineSQLite(ctx context.Context, dir string, _ *pgtest.Cluster) (*target, error) {
	database := filepath.Join(dir, "state.db")
	// These are the parameters that kine uses where no endpoint is given, as k3s runs it.
	kine, err := servers.StartKine(ctx, dir,
		"sqlite://"+database+"?_journal_mode=WAL&_busy_timeout=30000&_synchronous=NORMAL&_txlock=immediate&cache=shared")
	if err != nil {
		return nil, err
	}
	return startBefore(ctx, onKineSQLite, dir, kine, kine.Usage, fileSize(database))
}

func startOnKinePostgres(ctx context.Context, dir string, postgres *pgtest.Cluster) (*target, error) {
	endpoint := postgres.DSN("postgres")
	kine, err := servers.StartKine(ctx, dir, endpoint)
	if err != nil {
		return nil, err
	}
	store := func() (servers.Usage, error) {
		ours, err := kine.Usage()
		if err != nil {
			return ours, err
		}
		theirs, err := treeOf(postgres)()
		return servers.Usage{CPU: ours.CPU + theirs.CPU, Memory: ours.Memory + theirs.Memory}, err
	}
	return startBefore(ctx, onKinePostgres, dir, kine, store, databaseSize(endpoint))
}

// startBefore starts a kube-apiserver before a kine that runs.
func startBefore(
	ctx context.Context, name, dir string, kine *servers.Etcd, store func() (servers.Usage, error),
	size func(context.Context) (int64, error),
) (*target, error) {
	server, err := servers.Stock{Dir: dir, Etcd: kine}.Start(ctx)
	if err != nil {
		kine.Kill()
		return nil, err
	}
	server.Beside = []*servers.Process{kine.Process}
	return &target{name: name, server: server, store: store, size: size}, nil
}

func treeOf(postgres *pgtest.Cluster) func() (servers.Usage, error) {
	return func() (servers.Usage, error) {
		pid, err := postgres.PID()
		if err != nil {
			return servers.Usage{}, err
		}
		return servers.TreeUsage(pid)
	}
}

func fileSize(path string) func(context.Context) (int64, error) {
	return func(context.Context) (int64, error) {
		info, err := os.Stat(path)
		if err != nil {
			return 0, err
		}
		return info.Size(), nil
	}
}

func databaseSize(endpoint string) func(context.Context) (int64, error) {
	return func(ctx context.Context) (size int64, err error) {
		conn, err := pgx.Connect(ctx, endpoint)
		if err != nil {
			return 0, err
		}
		defer conn.Close(ctx)
		if err := conn.QueryRow(ctx, `SELECT pg_database_size(current_database())`).Scan(&size); err != nil {
			return 0, fmt.Errorf("size of the database: %w", err)
		}
		return size, nil
	}
}

// addReplicas starts more processes on the database of a byre, with its keys and certificates.
func (t *target) addReplicas(ctx context.Context, dir, endpoint string, n int) error {
	for i := range n {
		replica := filepath.Join(dir, fmt.Sprintf("replica-%d", i+1))
		if err := os.CopyFS(filepath.Join(replica, "pki"),
			os.DirFS(filepath.Join(filepath.Dir(t.server.Kubeconfig), "pki"))); err != nil {
			return err
		}
		server, err := servers.Byre{Dir: replica, Endpoint: endpoint}.Start(ctx)
		if err != nil {
			return err
		}
		t.replicas = append(t.replicas, server)
	}
	return nil
}

// servers are the server and its replicas.
func (t *target) servers() []*servers.Server {
	return append([]*servers.Server{t.server}, t.replicas...)
}

// serverOf is the server that the client of a number uses.
func (t *target) serverOf(client int) *servers.Server {
	all := t.servers()
	return all[client%len(all)]
}

// used returns what the server, with its replicas, and its database's processes use.
func (t *target) used() (server, store servers.Usage, err error) {
	for _, one := range t.servers() {
		used, err := one.Usage()
		if err != nil {
			return server, store, err
		}
		server.CPU += used.CPU
		server.Memory += used.Memory
	}
	if t.store == nil {
		return server, store, nil
	}
	store, err = t.store()
	return server, store, err
}

// ended says which of the server's processes have ended by themselves, with the ends of their
// logs; "" if all run.
func (t *target) ended() string {
	var all strings.Builder
	processes := t.server.Beside
	for _, server := range t.servers() {
		processes = append(processes, server.Process)
	}
	for _, p := range processes {
		if state := p.State(); state != "runs" {
			fmt.Fprintf(&all, "\nprocess %d %s; it logged:\n%s", p.PID(), state, p.LogTail())
		}
	}
	return all.String()
}
