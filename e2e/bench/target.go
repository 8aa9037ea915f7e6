package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"time"

	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
)

// target is one server under test.
type target struct {
	name   string
	server *servers.Server
	// start starts the server, also on what an earlier one has stored.
	start  func(context.Context) (*servers.Server, error)
	client *client
	// pods and maps count what was created, so that names never repeat.
	pods, maps, patches int

	// wardle is the sample API server behind it, direct its client and bare one
	// that reaches it through a bare proxy; nil where aggregation is not measured.
	wardle       *servers.Wardle
	direct, bare *client
}

func dialer() *net.Dialer { return &net.Dialer{KeepAlive: 30 * time.Second} }

// The plugin asks for a default service account, which no stock kube-apiserver
// makes without kube-controller-manager.
const withoutServiceAccounts = "--disable-admission-plugins=ServiceAccount"

func startByre(ctx context.Context, name, dir, endpoint string) (*target, error) {
	return newTarget(ctx, name, servers.Byre{Dir: filepath.Join(dir, name), Endpoint: endpoint, Args: []string{withoutServiceAccounts}}.Start)
}

func startStock(ctx context.Context, dir string, aggregates bool) (*target, error) {
	return newTarget(ctx, "kube-apiserver + etcd", servers.Stock{Dir: filepath.Join(dir, "stock"), Args: []string{withoutServiceAccounts}, Aggregates: aggregates}.Start)
}

func newTarget(ctx context.Context, name string, start func(context.Context) (*servers.Server, error)) (*target, error) {
	s, err := start(ctx)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	t := &target{name: name, server: s, start: start}
	if t.client, err = newClient(s); err != nil {
		s.Kill()
		return nil, err
	}
	return t, nil
}

// cpu is the processor time that the server and what it needs have used.
func (t *target) cpu() (time.Duration, error) {
	all := time.Duration(0)
	for _, p := range append([]*servers.Process{t.server.Process}, t.server.Beside...) {
		used, err := p.CPU()
		if err != nil {
			return 0, err
		}
		all += used
	}
	return all, nil
}

// quiet waits until the servers have done what work leaves behind: the next one's
// turn would pay for it. Servers that find no rest within 10 s are taken as they are.
func quiet(ctx context.Context, targets []*target) error {
	const look, most, patience = 250 * time.Millisecond, 40 * time.Millisecond, 10 * time.Second
	used := func() (all time.Duration, err error) {
		for _, t := range targets {
			cpu, err := t.cpu()
			if err != nil {
				return 0, err
			}
			all += cpu
		}
		return all, nil
	}
	before, err := used()
	for begun := time.Now(); err == nil && time.Since(begun) < patience; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(look):
		}
		var now time.Duration
		if now, err = used(); err == nil && now-before < most {
			return nil
		}
		before = now
	}
	return err
}

// memory is the resident memory of the server, and of what it needs, in bytes.
func (t *target) memory() (server, beside int64, err error) {
	if server, err = t.server.RSS(); err != nil {
		return 0, 0, err
	}
	for _, p := range t.server.Beside {
		rss, err := p.RSS()
		if err != nil {
			return 0, 0, err
		}
		beside += rss
	}
	return server, beside, nil
}

// pods is the path of all pods, or of those that a query selects.
func podsPath(key, selector string) string {
	path := "/api/v1/pods"
	if key != "" {
		path += "?" + url.Values{key: {selector}}.Encode()
	}
	return path
}

// cluster is a PostgreSQL for the run.
func startPostgres(ctx context.Context) (*pgtest.Cluster, string, error) {
	cluster, err := pgtest.Start(ctx)
	if err != nil {
		return nil, "", err
	}
	if err := cluster.Exec(ctx, "CREATE DATABASE bench"); err != nil {
		return nil, "", err
	}
	return cluster, cluster.DSN("bench"), nil
}
