package postgres_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
)

// shardClients is how many clients update leases at the same time in BenchmarkShards.
const shardClients = 512

// shardClientLeases is how many leases each of them has.
const shardClientLeases = 16

// BenchmarkShards measures what several stores in one database would earn, each with a writers' lock of
// its own, as shards of resources have: updates of leases by 512 clients, with a database that is
// near and 4 and 20 ms away. Unlogged are stores whose tables are UNLOGGED. It reports writes a
// second, and the processor time that PostgreSQL takes for one. `make shards` runs it.
func BenchmarkShards(b *testing.B) {
	for _, tables := range []string{"logged", "unlogged"} {
		for _, away := range []time.Duration{0, 4 * time.Millisecond, 20 * time.Millisecond} {
			for _, shards := range []int{1, 2, 4} {
				b.Run(fmt.Sprintf("%s/away=%v/shards=%d", tables, away, shards), func(b *testing.B) {
					benchShards(b, away, shards, tables == "unlogged")
				})
			}
		}
	}
}

func benchShards(b *testing.B, away time.Duration, shards int, unlogged bool) {
	cluster, err := pgtest.Start(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	stopAtEnd(b, cluster)
	server, err := cluster.PID()
	if err != nil {
		b.Fatal(err)
	}
	dsn := cluster.DSN("postgres")
	proxied := dsn
	if away > 0 {
		proxy := pgtest.NewProxy(b, dsn)
		proxy.Delay(away / 2)
		proxied = proxy.DSN()
	}
	metrics := prometheus.NewRegistry()
	var running sync.WaitGroup
	stores := make([]*sqlstore.Store, shards)
	for i := range stores {
		direct, driver := openShard(b, dsn, proxied, fmt.Sprintf("shard%d", i))
		b.Cleanup(func() { // the context has ended
			running.Wait()
			driver.Close()
		})
		if unlogged {
			makeUnlogged(b, direct)
		}
		store := sqlstore.New(driver,
			sqlstore.Options{Registerer: prometheus.WrapRegistererWith(prometheus.Labels{"shard": strconv.Itoa(i)}, metrics)})
		stores[i] = store
		running.Go(func() {
			if err := store.Run(b.Context()); err != nil {
				b.Error(err)
			}
		})
	}

	var next atomic.Int64
	var clients, created sync.WaitGroup
	created.Add(shardClients)
	begin := make(chan struct{})
	for i := range shardClients {
		clients.Go(func() {
			store := stores[i%shards]
			var leases [shardClientLeases]sqlstore.Write
			for n := range leases {
				leases[n] = leaseOf(i*len(leases) + n)
				commitLease(b, store, &leases[n])
			}
			created.Done()
			<-begin
			for n := 0; !b.Failed() && next.Add(1) <= int64(b.N); n++ {
				commitLease(b, store, &leases[n%len(leases)])
			}
		})
	}
	created.Wait()
	before, batchesBefore := serverCPU(b, server), batches(b, metrics)
	b.ResetTimer()
	close(begin)
	clients.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
	b.ReportMetric(float64((serverCPU(b, server)-before).Microseconds())/float64(b.N), "server-µs/write")
	b.ReportMetric(float64(b.N)/float64(batches(b, metrics)-batchesBefore), "writes/batch")
}

// batches returns how many transactions the stores have made.
func batches(b *testing.B, metrics *prometheus.Registry) (n uint64) {
	b.Helper()
	families, err := metrics.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "byre_store_batch_writes" {
			for _, m := range f.GetMetric() {
				n += m.GetHistogram().GetSampleCount()
			}
		}
	}
	return n
}

// openShard makes a store in a schema of a database. direct is its URL; the driver connects to the
// server of proxied.
func openShard(b *testing.B, dsn, proxied, schema string) (direct string, driver *postgres.Driver) {
	b.Helper()
	direct, err := migrations.WithSchema(dsn, schema)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := migrations.Up(b.Context(), direct); err != nil {
		b.Fatal(err)
	}
	if proxied, err = migrations.WithSchema(proxied, schema); err != nil {
		b.Fatal(err)
	}
	if driver, err = postgres.Open(b.Context(), proxied, postgres.Options{}); err != nil {
		b.Fatal(err)
	}
	return direct, driver
}

func makeUnlogged(b *testing.B, dsn string) {
	b.Helper()
	conn := connect(b, dsn)
	for _, table := range []string{"current_objects", "undo_log"} {
		if _, err := conn.Exec(b.Context(), "ALTER TABLE "+table+" SET UNLOGGED"); err != nil {
			b.Fatal(err)
		}
	}
}

// commitLease commits a write, and makes it the next update of the same lease.
func commitLease(b *testing.B, store *sqlstore.Store, lease *sqlstore.Write) {
	at, err := store.Commit(b.Context(), *lease)
	if err != nil {
		b.Error(err)
	}
	lease.Op, lease.Replaces = sqlstore.Update, at.Revision
}

// leaseOf returns the create of a node's lease, of the size that a kubelet's has.
func leaseOf(i int) sqlstore.Write {
	return sqlstore.Write{
		Op: sqlstore.Create, UID: fmt.Sprintf("01234567-89ab-cdef-0123-%012d", i),
		Key: sqlstore.Key{Group: "coordination.k8s.io", Resource: "leases", Namespace: "kube-node-lease",
			Name: fmt.Sprintf("node-%05d", i)},
		Value: append(append([]byte(`{"spec":"`), bytes.Repeat([]byte("0123456789abcdef"), 40)...), `"}`...),
		Author: sqlstore.Author{User: fmt.Sprintf("system:node:node-%05d", i), Verb: "update", Manager: "kubelet",
			AuditID: fmt.Sprintf("%036d", i)},
	}
}

// serverCPU returns the processor time that the server with process ID pid has taken, with its
// sessions and other children, also those that have ended.
func serverCPU(b *testing.B, pid int) time.Duration {
	b.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		b.Fatal(err)
	}
	var ticks int64
	for _, process := range processes {
		stat, err := os.ReadFile(process)
		if err != nil {
			continue // it has ended
		}
		name, after, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(after)
		if parent := strconv.Itoa(pid); fields[1] != parent && !strings.HasPrefix(name, parent+" ") {
			continue
		}
		for _, field := range fields[11:15] { // utime, stime, cutime, cstime
			n, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			ticks += n
		}
	}
	return time.Duration(ticks) * time.Second / 100 // USER_HZ
}
