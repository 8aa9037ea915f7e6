package main

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"byre/e2e/programs"
	"byre/e2e/servers"
)

// The targets of the suite "etcd": a stock kube-apiserver on different stores.
const (
	onByreEtcdSQLite   = "kube-apiserver + byre etcd on SQLite"
	onByreEtcdPostgres = "kube-apiserver + byre etcd on PostgreSQL"
	onKinePostgres     = "kube-apiserver + kine on PostgreSQL"
)

func etcdSizes(o options) sizes {
	s := sizes{Period: 5 * time.Second, Rounds: 3, Settle: 8 * time.Second}
	if o.short {
		s = sizes{Period: 500 * time.Millisecond, Rounds: 1, Settle: 2 * time.Second}
	}
	return s.override(o, false)
}

// etcdTargets are a stock kube-apiserver on etcd, on byre etcd and on kine. The databases on PostgreSQL share a
// server; each is used in its own turn only.
func (b *bench) etcdTargets(ctx context.Context, dir string) ([]*target, error) {
	if err := programs.Build(ctx, programs.Kine); err != nil {
		return nil, err
	}
	cluster, err := b.startCluster(ctx)
	if err != nil {
		return nil, err
	}
	if err := cluster.Exec(ctx, "CREATE DATABASE kine"); err != nil {
		return nil, err
	}
	byreEtcd := func(endpoint string) func(context.Context, string) (*servers.Etcd, error) {
		return func(ctx context.Context, dir string) (*servers.Etcd, error) {
			return servers.StartByreEtcd(ctx, dir, endpoint)
		}
	}
	targets := []*target{stockTarget(dir, false)}
	for _, store := range []struct {
		name       string
		isPostgres bool
		start      func(ctx context.Context, dir string) (*servers.Etcd, error)
	}{
		{onByreEtcdSQLite, false, byreEtcd("")},
		{onByreEtcdPostgres, true, byreEtcd(b.endpoint)},
		{onKine, false, startKineOnSQLite},
		{onKinePostgres, true, func(ctx context.Context, dir string) (*servers.Etcd, error) {
			return servers.StartKine(ctx, dir, cluster.DSN("kine"))
		}},
	} {
		dir := filepath.Join(dir, store.name)
		t := &target{name: store.name}
		t.start = func(ctx context.Context) (*servers.Server, error) {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return nil, err
			}
			etcd, err := store.start(ctx, dir)
			if err != nil {
				return nil, err
			}
			s, err := servers.Stock{Dir: dir, Etcd: etcd, Args: []string{withoutServiceAccounts}}.Start(ctx)
			if err != nil {
				etcd.Kill()
				return nil, err
			}
			s.Beside = []*servers.Process{etcd.Process}
			return s, nil
		}
		t.storeUsage = func() (servers.Usage, error) {
			used, err := t.server.Beside[0].Usage()
			if err != nil || !store.isPostgres {
				return used, err
			}
			pid, err := cluster.PID()
			if err != nil {
				return servers.Usage{}, err
			}
			database, err := servers.TreeUsage(pid)
			return servers.Usage{CPU: used.CPU + database.CPU, Memory: used.Memory + database.Memory}, err
		}
		targets = append(targets, t)
	}
	return targets, nil
}

func (b *bench) etcdPhases(context.Context) ([]phase, error) {
	return append([]phase{b.memory("memory, idle", b.Settle), b.setUp()}, b.repeated(func() []phase {
		return []phase{b.updateLeases(admin, clients), b.updateLeases(admin, mostClients)}
	})...), nil
}
