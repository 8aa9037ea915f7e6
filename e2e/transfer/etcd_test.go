package transfer

import (
	"bytes"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"byre/e2e/cluster"
	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
)

// objectCount is how many objects the tests make.
func objectCount(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("E2E_TRANSFER_OBJECTS"))
	if err != nil {
		return 300
	}
	return n
}

// keyValue is a key of etcd as a client sees it. ttl is the lease's TTL in seconds, 0 if it
// has none. It is not the remaining time: an etcd that starts grants each lease its full TTL.
type keyValue struct {
	value            []byte
	created, written int64
	ttl              int64
}

// etcdKeys reads all keys of Kubernetes.
func etcdKeys(t *testing.T, etcd *servers.Etcd) (map[string]keyValue, int64) {
	t.Helper()
	client := etcdClient(t, etcd)
	all, revision := map[string]keyValue{}, int64(0)
	ttls := map[int64]int64{}
	const page = 500
	for from := "/registry/"; ; {
		answer, err := client.Get(t.Context(), from, clientv3.WithRange("/registry0"), clientv3.WithLimit(page),
			clientv3.WithRev(revision))
		if err != nil {
			t.Fatal(err)
		}
		revision = answer.Header.Revision
		for _, kv := range answer.Kvs {
			if kv.Lease != 0 && ttls[kv.Lease] == 0 {
				lease, err := client.TimeToLive(t.Context(), clientv3.LeaseID(kv.Lease))
				switch {
				case err == nil:
					ttls[kv.Lease] = lease.GrantedTTL
				case strings.Contains(err.Error(), "not supported"): // kine, whose leases are called by their TTL
					ttls[kv.Lease] = kv.Lease
				default:
					t.Fatal(err)
				}
			}
			all[string(kv.Key)] = keyValue{kv.Value, kv.CreateRevision, kv.ModRevision, ttls[kv.Lease]}
			from = string(kv.Key) + "\x00"
		}
		if !answer.More {
			return all, revision
		}
	}
}

func etcdClient(t *testing.T, etcd *servers.Etcd) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.URL}, DialTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// saveSnapshot does what "etcdctl snapshot save" does.
func saveSnapshot(t *testing.T, etcd *servers.Etcd, path string) {
	t.Helper()
	body, err := etcdClient(t, etcd).Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(file, body); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

// server is a server that a test has started, as its administrator sees it.
type server struct {
	*servers.Server
	*cluster.Cluster
}

func connect(t *testing.T, s *servers.Server) *server {
	t.Helper()
	return &server{s, cluster.Connect(t, s.Config(servers.AdminToken))}
}

// stockCluster starts a stock server that stores in etcd or kine.
func stockCluster(t *testing.T, dir string, etcd *servers.Etcd, args ...string) *server {
	t.Helper()
	s, err := servers.Stock{Dir: dir, Etcd: etcd, Args: args}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	return connect(t, s)
}

func startEtcd(t *testing.T, dir string) *servers.Etcd {
	t.Helper()
	etcd, err := servers.StartEtcd(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Kill)
	return etcd
}

func startByre(t *testing.T, dir string, args ...string) *server {
	t.Helper()
	s, err := servers.Byre{Dir: dir, Args: args}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Report(t)
		s.Kill()
	})
	return connect(t, s)
}

// TestEtcd_RoundTripKeepsObjects moves a cluster from etcd to byre and on to another etcd.
func TestEtcd_RoundTripKeepsObjects(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	etcd := startEtcd(t, dir)
	stock := stockCluster(t, dir, etcd)
	made := stock.Fill(t, objectCount(t))
	before := stock.Dump(t)
	if err := stock.Process.Stop(); err != nil {
		t.Fatal(err)
	}
	keys, revision := etcdKeys(t, etcd)
	snapshot := filepath.Join(dir, "cluster.db")
	saveSnapshot(t, etcd, snapshot)
	etcd.Kill()
	t.Logf("made %d objects; the server has %d; etcd has %d keys at revision %d", made, len(before), len(keys), revision)

	data, imported := filepath.Join(dir, "data"), time.Now()
	t.Log(timed(t, programs.Byre, "import", "etcd", snapshot, "--data-dir", data))
	if out := refused(t, programs.Byre, "import", "etcd", snapshot, "--data-dir", data); !strings.Contains(out,
		"holds data") {
		t.Errorf("a second import says %s", out)
	}
	// The export follows at once, before byre itself has served and written anything.
	exported := filepath.Join(dir, "exported.db")
	t.Log(timed(t, programs.Byre, "export", "etcd", exported, "--data-dir", data))
	t.Log(command(t, programs.Etcdutl, "snapshot", "status", exported, "-w", "table"))
	second := filepath.Join(dir, "second")
	command(t, programs.Etcdutl, "snapshot", "restore", exported, "--data-dir", filepath.Join(second, "etcd"))
	restored := startEtcd(t, second)
	back, backRevision := etcdKeys(t, restored)
	compareKeys(t, keys, back, imported)
	if backRevision != revision {
		t.Errorf("etcd is at revision %d, was at %d", backRevision, revision)
	}
	cluster.Compare(t, before, stockCluster(t, second, restored).Dump(t), revision)

	// Without controllers, which would write to what is compared.
	byre := startByre(t, data, "--controllers=")
	cluster.Compare(t, before, byre.Dump(t), revision)
	if err := byre.Stop(); err != nil {
		t.Fatal(err)
	}
	startByre(t, data).checkUsable(t)
	intoPostgres(t, before, keys, revision, nil, "etcd", snapshot)
}

// intoPostgres imports a source into PostgreSQL, and compares what byre shows and what it
// exports with what was there. The flags are those that byre needs to serve it.
func intoPostgres(
	t *testing.T, before map[string]*unstructured.Unstructured, keys map[string]keyValue, revision int64, flags []string,
	source ...string,
) {
	t.Helper()
	dir, endpoint, imported := t.TempDir(), pgtest.DSN(t), time.Now()
	t.Log("to PostgreSQL: " + timed(t, programs.Byre,
		append(append([]string{"import"}, source...), "--endpoint", endpoint)...))
	if out := refused(t, programs.Byre,
		append(append([]string{"import"}, source...), "--endpoint", endpoint)...); !strings.Contains(out, "holds data") {
		t.Errorf("a second import says %s", out)
	}
	exported := filepath.Join(dir, "exported.db")
	t.Log(timed(t, programs.Byre, "export", "etcd", exported, "--endpoint", endpoint))
	command(t, programs.Etcdutl, "snapshot", "restore", exported, "--data-dir", filepath.Join(dir, "etcd"))
	back, _ := etcdKeys(t, startEtcd(t, dir))
	compareKeys(t, keys, back, imported)
	server, err := servers.Byre{Dir: filepath.Join(dir, "data"), Endpoint: endpoint,
		Args: append(flags, "--controllers=")}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	cluster.Compare(t, before, connect(t, server).Dump(t), revision)
}

// TestEarlierEtcd_IsImported moves a cluster from etcd 3.5 and from etcd 3.6;
// TestEtcd_RoundTripKeepsObjects moves one from the etcd of the stock server. Snapshots differ
// in the bucket "meta": those of 3.5 have no storage version there, those of 3.6 have theirs.
func TestEarlierEtcd_IsImported(t *testing.T) {
	t.Parallel()
	for minor, program := range map[string]programs.Program{"3.5": programs.Etcd35, "3.6": programs.Etcd36} {
		t.Run(minor, func(t *testing.T) {
			t.Parallel()
			importEarlierEtcd(t, program, minor)
		})
	}
}

// importEarlierEtcd imports the snapshot of an etcd and the file of its member.
func importEarlierEtcd(t *testing.T, program programs.Program, minor string) {
	t.Helper()
	dir := t.TempDir()
	etcd, err := servers.StartEtcdOf(t.Context(), program, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Kill)
	status, err := etcdClient(t, etcd).Status(t.Context(), etcd.URL)
	if err != nil || !strings.HasPrefix(status.Version, minor+".") {
		t.Fatalf("the etcd is %v, %v, want %s", status, err, minor)
	}
	stock := stockCluster(t, dir, etcd)
	made := stock.Fill(t, objectCount(t))
	before := stock.Dump(t)
	if err := stock.Process.Stop(); err != nil {
		t.Fatal(err)
	}
	keys, revision := etcdKeys(t, etcd)
	snapshot := filepath.Join(dir, "cluster.db")
	saveSnapshot(t, etcd, snapshot)
	t.Logf("made %d objects; the server has %d; etcd has %d keys at revision %d", made, len(before), len(keys), revision)
	if err := etcd.Stop(); err != nil {
		t.Logf("etcd ended with %v", err)
	}
	// The file of the member that was stopped says the same.
	for name, source := range map[string][]string{
		"snapshot": {snapshot},
		"member":   {filepath.Join(dir, "etcd", "member", "snap", "db"), "--skip-hash-check"},
	} {
		data, imported := filepath.Join(dir, name), time.Now()
		t.Log(timed(t, programs.Byre, append([]string{"import", "etcd", "--data-dir", data}, source...)...))
		exported := filepath.Join(dir, name+".db")
		command(t, programs.Byre, "export", "etcd", exported, "--data-dir", data)
		restored := filepath.Join(dir, name+"-restored")
		command(t, programs.Etcdutl, "snapshot", "restore", exported, "--data-dir", filepath.Join(restored, "etcd"))
		back, _ := etcdKeys(t, startEtcd(t, restored))
		compareKeys(t, maps.Clone(keys), back, imported)
	}
	byre := startByre(t, filepath.Join(dir, "snapshot"), "--controllers=")
	cluster.Compare(t, before, byre.Dump(t), revision)
	intoPostgres(t, before, keys, revision, nil, "etcd", snapshot)
}

// timed runs a command and says how long it took.
func timed(t *testing.T, program programs.Program, args ...string) string {
	t.Helper()
	start := time.Now()
	out := command(t, program, args...)
	return strings.Join(args[:2], " ") + " took " + time.Since(start).Round(time.Millisecond).String() + ":\n" + out
}

// compareKeys compares keys, values and revisions with what they were. Addresses of
// servers and the allocators' ranges are left out. Leases run from the import on; those of an
// export are rounded up to a minute.
func compareKeys(t *testing.T, before, after map[string]keyValue, imported time.Time) {
	t.Helper()
	passed := int64(time.Since(imported).Seconds()) + 1
	maps.DeleteFunc(before, func(key string, _ keyValue) bool {
		return strings.HasPrefix(key, "/registry/masterleases/") || strings.HasPrefix(key, "/registry/ranges/") ||
			key == "/registry/health"
	})
	complaints := 0
	for _, key := range slices.Sorted(maps.Keys(before)) {
		a, b := before[key], after[key]
		switch {
		case b.value == nil:
			t.Errorf("%s is gone", key)
		case a.created != b.created || a.written != b.written:
			t.Errorf("%s: created at %d and written at %d, was at %d and %d", key, b.created, b.written, a.created, a.written)
		case !bytes.Equal(bytes.TrimSpace(a.value), bytes.TrimSpace(b.value)) && !isStoredOtherwise(key):
			t.Errorf("%s has another value:\n%q\n%q", key, a.value, b.value)
		case (a.ttl > 0) != (b.ttl > 0) || b.ttl < a.ttl-passed || b.ttl > a.ttl+60:
			t.Errorf("%s lives for %d s, did for %d s", key, b.ttl, a.ttl)
		default:
			continue
		}
		if complaints++; complaints > 10 {
			t.Fatal("and more")
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d keys, were %d", len(after), len(before))
	}
	t.Logf("%d keys have the same bytes and revisions", len(before))
}

// isStoredOtherwise reports whether a key is of a resource that byre encodes otherwise than
// a stock server, to the same object: definitions in v1 and not in v1beta1, jobs and claims
// with the defaults that each read would fill in. What servers show of all objects is
// compared apart from this.
func isStoredOtherwise(key string) bool {
	return strings.HasPrefix(key, "/registry/apiextensions.k8s.io/customresourcedefinitions/") ||
		strings.HasPrefix(key, "/registry/jobs/") || strings.HasPrefix(key, "/registry/persistentvolumeclaims/")
}
