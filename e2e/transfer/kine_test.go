package transfer

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"byre/e2e/cluster"
	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
)

// TestKine_IsImported moves a cluster from kine to byre, as from k3s.
func TestKine_IsImported(t *testing.T) {
	t.Parallel()
	for name, endpoints := range map[string]func(t *testing.T) (kines, byres string){
		"sqlite": func(t *testing.T) (string, string) {
			path := filepath.Join(t.TempDir(), "state.db")
			// As k3s has it (kine's DefaultParams).
			return "sqlite://" + path + "?_journal_mode=WAL&_busy_timeout=30000&_synchronous=NORMAL&_txlock=immediate",
				"sqlite://" + path
		},
		"postgres": func(t *testing.T) (string, string) {
			dsn := pgtest.DSN(t)
			return dsn, dsn
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kines, from := endpoints(t)
			dir := t.TempDir()
			kine, err := servers.StartKine(t.Context(), dir, kines)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(kine.Kill)
			stock := stockCluster(t, dir, kine)
			made := stock.Fill(t, objectCount(t))
			before := stock.Dump(t)
			if err := stock.Process.Stop(); err != nil {
				t.Fatal(err)
			}
			likeK3s(t, kine)
			keys, revision := etcdKeys(t, kine)
			t.Logf("made %d objects; the server has %d; kine has %d keys at revision %d", made, len(before), len(keys), revision)

			data, imported := filepath.Join(dir, "data"), time.Now()
			out := timed(t, programs.Byre, "import", "kine", from, "--data-dir", data)
			if t.Log(out); !strings.Contains(out, "left out: 2 (not below the prefix)") {
				t.Error("the import does not say that it leaves out what k3s and kine keep for themselves")
			}
			if err := kine.Stop(); err != nil {
				t.Logf("kine ended with %v", err)
			}
			exported := filepath.Join(dir, "exported.db")
			command(t, programs.Byre, "export", "etcd", exported, "--data-dir", data)
			restored := filepath.Join(dir, "restored")
			command(t, programs.Etcdutl, "snapshot", "restore", exported, "--data-dir", filepath.Join(restored, "etcd"))
			back, _ := etcdKeys(t, startEtcd(t, restored))
			compareKeys(t, keys, back, imported)

			// Without controllers, which would write to what is compared.
			byre := startByre(t, data, "--controllers=")
			cluster.Compare(t, before, byre.Dump(t), revision)
			if err := byre.Stop(); err != nil {
				t.Fatal(err)
			}
			startByre(t, data).checkUsable(t)
			intoPostgres(t, before, keys, revision, nil, "kine", from)
		})
	}
}

// likeK3s adds to kine the key that k3s keeps beside the objects of Kubernetes: the
// cluster's CAs, encrypted by the cluster's token. (k3s itself cannot be built from its
// module: it needs the replacements in its go.mod. It embeds kine, with the same table and
// statements as the program that the test runs.)
func likeK3s(t *testing.T, kine *servers.Etcd) {
	t.Helper()
	const key = "/bootstrap/75c3b0a5d6c2"
	answer, err := etcdClient(t, kine).Txn(t.Context()).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, "0011223344556677:c2VhbGVk")).
		Else(clientv3.OpGet(key)).Commit()
	if err != nil || !answer.Succeeded {
		t.Fatal(answer, err)
	}
}

// TestImport_RefusesWhatIsNoSource: the error names what is wrong, and what to do next, in
// one line.
func TestImport_RefusesWhatIsNoSource(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	byres := filepath.Join(dir, "byre.db")
	command(t, programs.Byre, "migrate", "up", "--endpoint", "sqlite://"+byres)
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no file":            {[]string{"etcd", filepath.Join(dir, "nothing.db")}, "no such file"},
		"not of etcd":        {[]string{"etcd", byres}, "is a database of byre: use"},
		"not of etcd at all": {[]string{"etcd", byres, "--skip-hash-check"}, "is a database of byre: use"},
		"no file of kine":    {[]string{"kine", "sqlite://" + filepath.Join(dir, "nothing.db")}, "no such file"},
		"not of kine":        {[]string{"kine", "sqlite://" + byres}, "is a database of byre: use"},
		"no database":        {[]string{"kine", "nonsense"}, "want sqlite:///path or postgres://"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := filepath.Join(t.TempDir(), "data")
			out := refused(t, programs.Byre, append([]string{"import", "--data-dir", data}, c.args...)...)
			if !strings.Contains(out, c.want) || strings.Count(strings.TrimSpace(out), "\n") > 0 {
				t.Errorf("says %q, want %q in one line", out, c.want)
			}
		})
	}
}
