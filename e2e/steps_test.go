package e2e

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"byre/e2e/operator"
	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
)

// The sections of docs/operations, and how many blocks of commands each has.
func edgeSteps(t *testing.T) []string {
	t.Helper()
	return operator.Commands(t, "one-host.md", "An edge node", 4)
}

func upgradeSteps(t *testing.T) (onSQLite, onPostgres, upgrade string) {
	t.Helper()
	blocks := operator.Commands(t, "upgrade.md", "A backup and an upgrade", 3)
	return blocks[0], blocks[1], blocks[2]
}

func recoverySteps(t *testing.T) (onSQLite, onPostgres []string) {
	t.Helper()
	blocks := operator.Commands(t, "backup.md", "A recovery", 6)
	return blocks[:2], blocks[2:]
}

// olderByre builds an older byre. Without the repository's history it is this byre.
func olderByre(t *testing.T) string {
	t.Helper()
	older, err := programs.BuildOlder(t.Context(), programs.Oldest)
	if errors.Is(err, programs.ErrNoHistory) {
		t.Log(err)
		return programs.Byre.Path()
	}
	if err != nil {
		t.Fatal(err)
	}
	return older
}

// mustSay checks what a command has printed.
func mustSay(t *testing.T, out, pattern string) {
	t.Helper()
	if !regexp.MustCompile(pattern).MatchString(out) {
		t.Fatalf("%s\nhas no %s", out, pattern)
	}
}

const asAdmin = "kubectl --kubeconfig /var/lib/byre/admin.kubeconfig "

// TestSteps_EdgeNode types the steps of an edge node until the kubelet starts, whose credentials
// work then. "make node-test" types all of them.
func TestSteps_EdgeNode(t *testing.T) {
	t.Parallel()
	steps := edgeSteps(t)
	h := operator.NewHost(t, "edge")
	h.Package(t, programs.Byre.Path(), "2.0.0")
	mustSay(t, h.Type(t, steps[0]), `Server +\S+, ready`)
	h.Type(t, steps[1])
	h.EditScript(t, "join.sh", operator.WithoutSystemctl)
	h.Type(t, steps[2])
	mustSay(t, h.Type(t, "kubectl --kubeconfig /etc/kubernetes/bootstrap.kubeconfig auth whoami"),
		`system:bootstrappers:named-node`)
	mustSay(t, h.Type(t, "kubectl --kubeconfig /etc/kubernetes/bootstrap.kubeconfig auth can-i create certificatesigningrequests"), `yes`)
}

// TestSteps_UpgradeAndRecovery sets up an older byre, upgrades it, and then loses the database and
// recovers it.
func TestSteps_UpgradeAndRecovery(t *testing.T) {
	programs.Night(t)
	t.Parallel()
	older := olderByre(t)
	t.Run("one host on SQLite", func(t *testing.T) {
		t.Parallel()
		testOneHost(t, older)
	})
	t.Run("three replicas on PostgreSQL", func(t *testing.T) {
		t.Parallel()
		testThreeReplicas(t, older)
	})
}

func testOneHost(t *testing.T, older string) {
	h := operator.NewHost(t, "one")
	h.Package(t, older, "1.0.0")
	h.Type(t, "apt install -y ./byre_*.deb\nsystemctl enable --now byre")
	h.Type(t, asAdmin+"create configmap before")

	backup, _, upgrade := upgradeSteps(t)
	h.Type(t, backup)
	h.Package(t, programs.Byre.Path(), "2.0.0")
	mustSay(t, h.Type(t, upgrade), `Server +\S+, ready`)
	h.Type(t, asAdmin+"get configmap before")

	h.Type(t, asAdmin+"create configmap after")
	h.Type(t, backup)
	h.Type(t, asAdmin+"create configmap lost")
	recovery, _ := recoverySteps(t)
	h.Type(t, recovery[0])
	mustSay(t, h.Type(t, recovery[1]), `Server +\S+, ready`)
	mustSay(t, h.Type(t, asAdmin+"get configmaps --output name"), `(?s)^configmap/after\nconfigmap/before\n`)
	if out := h.Type(t, asAdmin+"get configmaps --output name"); strings.Contains(out, "lost") {
		t.Errorf("an object from after the backup is there: %s", out)
	}

	// On a new host there are only the package and the copied backup.
	other := operator.NewHost(t, "new")
	other.Package(t, programs.Byre.Path(), "2.0.0")
	if err := os.CopyFS(other.Path("var/backups"), os.DirFS(h.Path("var/backups"))); err != nil {
		t.Fatal(err)
	}
	other.Type(t, "apt install -y ./byre_*.deb")
	other.Type(t, recovery[0])
	mustSay(t, other.Type(t, recovery[1]), `Server +\S+, ready`)
	other.Type(t, asAdmin+"get configmap after before")
}

// testThreeReplicas upgrades one replica after the other.
func testThreeReplicas(t *testing.T, older string) {
	steps := operator.Commands(t, "postgresql.md", "Three replicas on PostgreSQL", 5)
	_, backup, upgrade := upgradeSteps(t)
	_, recovery := recoverySteps(t)

	primary, socket := newDatabaseHost(t)
	hosts, balancer := newReplicaHosts(t, socket)

	primary.Type(t, steps[0])
	for _, h := range hosts {
		h.Package(t, older, "1.0.0")
		h.Type(t, steps[1])
	}
	hosts[0].Type(t, steps[2])
	hosts[1].Type(t, steps[3])
	hosts[2].Type(t, steps[3])
	hosts[0].Type(t, asAdmin+"create configmap before")
	hosts[1].Type(t, backup)
	for _, h := range hosts {
		h.Package(t, programs.Byre.Path(), "2.0.0")
		mustSay(t, h.Type(t, upgrade), `(?s)^.*ok.*Server +\S+, ready`)
		h.Type(t, asAdmin+"get configmap before")
	}
	mustHaveReplicas(t, hosts, hosts[2].Type(t, steps[4]))
	mustServeName(t, balancer, "byre.example.com")

	hosts[0].Type(t, asAdmin+"create configmap after")
	hosts[1].Type(t, backup)
	hosts[0].Type(t, asAdmin+"create configmap lost")
	for _, h := range hosts {
		h.Type(t, recovery[0])
	}
	primary.Type(t, recovery[1])
	hosts[1].Type(t, recovery[2])
	hosts[0].Type(t, recovery[3])
	mustHaveReplicas(t, hosts, hosts[2].Type(t, recovery[3]))
	for _, h := range hosts {
		mustSay(t, h.Type(t, asAdmin+"get configmaps --output name"),
			`(?s)^configmap/after\nconfigmap/before\nconfigmap/kube-root-ca.crt\n$`)
	}
}

// newDatabaseHost makes a host with a PostgreSQL that asks every role but postgres for a
// password, and returns the folder of its socket.
func newDatabaseHost(t *testing.T) (h *operator.Host, socket string) {
	t.Helper()
	psql, err := pgtest.Program("psql")
	if err != nil {
		t.Skip(err)
	}
	cluster, err := pgtest.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cluster.Stop() // the exit status is that of the signal
	})
	parsed, err := url.Parse(cluster.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	socket = parsed.Query().Get("host")
	h = operator.NewHost(t, "db1")
	if err := os.Symlink(psql, h.Path("bin/psql")); err != nil {
		t.Fatal(err)
	}
	h.Setenv("PGHOST", socket)
	h.Setenv("PGDATABASE", "postgres")
	// The server's first role has the name of the role that the page creates.
	if err := cluster.Exec(t.Context(), `CREATE ROLE postgres SUPERUSER LOGIN`); err != nil {
		t.Fatal(err)
	}
	if err := cluster.WriteFile("pg_hba.conf",
		[]byte("local all postgres trust\nlocal all byre scram-sha-256\n")); err != nil {
		t.Fatal(err)
	}
	h.Setenv("PGUSER", "postgres")
	h.Type(t, `psql -c "ALTER ROLE byre RENAME TO first" -c "SELECT pg_reload_conf()"`)
	return h, socket
}

// newReplicaHosts makes three hosts whose PostgreSQL is at a socket, and a balancer before them.
func newReplicaHosts(t *testing.T, socket string) ([]*operator.Host, *servers.Balancer) {
	t.Helper()
	replace := []string{"db1.example.com,db2.example.com", url.QueryEscape(socket), "https://byre.example.com:6443",
		"https://$BALANCER"}
	var hosts []*operator.Host
	var addresses []string
	peers := map[string]*operator.Host{}
	for i := range 3 {
		h := operator.NewHost(t, fmt.Sprintf("byre-%d", i+1), replace...)
		h.Peers, peers[h.Name+".example.com"] = peers, h
		hosts, addresses = append(hosts, h), append(addresses, "127.0.0.1:"+h.Port)
	}
	balancer, err := servers.StartBalancer(t.Context(), addresses...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = balancer.Close() })
	for _, h := range hosts {
		h.Setenv("BALANCER", strings.TrimPrefix(balancer.URL(), "https://"))
	}
	return hosts, balancer
}

// mustServeName checks that the servers behind a balancer have certificates for a name.
func mustServeName(t *testing.T, balancer *servers.Balancer, name string) {
	t.Helper()
	for range 3 { // connections go to the servers in turn
		conn, err := tls.Dial("tcp", strings.TrimPrefix(balancer.URL(), "https://"), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.ConnectionState().PeerCertificates[0].VerifyHostname(name); err != nil {
			t.Error(err)
		}
		_ = conn.Close()
	}
}

// mustHaveReplicas checks that byre's status, which is in out, names all hosts, and a leader.
func mustHaveReplicas(t *testing.T, hosts []*operator.Host, out string) {
	t.Helper()
	mustSay(t, out, `Leader `)
	for _, h := range hosts {
		if os.Getuid() == 0 { // see operator.Host
			mustSay(t, out, `Replica +`+h.Name+` `)
		}
	}
}
