// Package testserver takes the place of upstream's package of that name when `make etcd-storage` runs the tests of
// k8s.io/apiserver/pkg/storage. It starts "byre etcd" as a program, on the database that BYRE_ETCD_DATABASE names
// (sqlite or postgres; etcd is a real etcd, to tell the server's faults from the test's), where upstream starts etcd
// in the process of the test.
package testserver

import (
	"fmt"
	"os"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"

	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
)

// NewTestConfig returns a configuration of etcd. RunEtcd passes on what the tests change in it.
func NewTestConfig(testing.TB) *embed.Config { return embed.NewConfig() }

// RunEtcd starts a server with an empty store and returns its client. Both end with the test.
func RunEtcd(t testing.TB, cfg *embed.Config) *kubernetes.Client {
	t.Helper()
	var args []string
	if cfg != nil && cfg.WatchProgressNotifyInterval != embed.NewConfig().WatchProgressNotifyInterval {
		args = append(args, fmt.Sprintf("--watch-progress-notify-interval=%v", cfg.WatchProgressNotifyInterval))
	}
	etcd, err := start(t, args)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		etcd.Kill()
		if t.Failed() {
			t.Log(etcd.LogTail())
		}
	})
	client, err := kubernetes.New(clientv3.Config{Endpoints: []string{etcd.URL}, DialTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	recorder := storagetesting.NewKubernetesRecorder(client.Kubernetes)
	client.KV = storagetesting.NewKVRecorder(client.KV, recorder)
	client.Kubernetes = recorder
	return client
}

func start(t testing.TB, args []string) (*servers.Etcd, error) {
	switch database := os.Getenv("BYRE_ETCD_DATABASE"); database {
	case "sqlite":
		return servers.StartByreEtcd(t.Context(), t.TempDir(), "", args...)
	case "postgres":
		return servers.StartByreEtcd(t.Context(), t.TempDir(), pgtest.DSN(t), args...)
	case "etcd":
		return servers.StartEtcd(t.Context(), t.TempDir(), args...)
	default:
		return nil, fmt.Errorf("no database %q", database)
	}
}
