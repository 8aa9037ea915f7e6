package failover

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"byre/e2e/programs"
	"byre/e2e/robustness"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

var (
	tools      = flag.String("tools", "", "the folder that .ci/unpack prints; the tests are skipped without it")
	only       = flag.String("faults", "", "run the faults whose names match this regular expression only")
	onlyOf     = flag.String("topologies", "", "run the topologies whose names match this regular expression only")
	replicas   = flag.Int("replicas", 2, "how many processes of byre share the database")
	out        = flag.String("out", "../../bin/failover", "where the histories of failures go")
	topologies = []struct {
		name  string
		start func(s *site, isSynchronous bool) *cluster
	}{
		{"Patroni", newPatroni},
		{"Patroni behind HAProxy", newPatroniBehindHAProxy},
		{"Patroni behind HAProxy and PgBouncer", newPatroniBehindPgBouncer},
		{"HAProxy before PgBouncer in transaction mode", newPatroniBeforePgBouncers("transaction")},
		{"HAProxy before PgBouncer in session mode", newPatroniBeforePgBouncers("session")},
		{"Patroni with three members of etcd", newPatroniWhole},
		{"pg_auto_failover", newAutoFailover},
		{"repmgr", newRepmgr},
	}
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *tools == "" {
		fmt.Println("run make failover")
		os.Exit(0)
	}
	os.Exit(programs.Main(m, programs.Byre, programs.Etcd, programs.Guard))
}

// TestFailover_KeepsPromises has each topology fail over in several ways while clients use byre,
// with a synchronous standby, and without one.
func TestFailover_KeepsPromises(t *testing.T) {
	for _, topology := range topologies {
		for mode, isSynchronous := range map[string]bool{"synchronous": true, "asynchronous": false} {
			t.Run(topology.name+"/"+mode, func(t *testing.T) {
				if ok, err := regexp.MatchString(*onlyOf, topology.name+"/"+mode); err != nil || !ok {
					t.Skip("not asked for", err)
				}
				c := topology.start(newSite(t, *tools), isSynchronous)
				runFaults(t, c)
			})
		}
	}
}

// grace is the time within which byre writes again after the manager's time-out.
const grace = 3 * time.Second

// runFaults runs byre on a cluster, and the faults one after another.
func runFaults(t *testing.T, c *cluster) {
	if err := c.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	e, err := robustness.NewEnv(t, c.database(), *replicas)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.recordEpochs(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, f := range slices.Concat(faults, hostFaults) {
		if f.needs != nil && !f.needs(c) {
			continue
		}
		if ok, err := regexp.MatchString(*only, f.name); err != nil || !ok {
			continue
		}
		result := robustness.RunFault(t, e, f.on(c), *out)
		isLate := result != nil && result.Unavailable > c.timeout+grace
		if t.Failed() || isLate {
			for _, r := range e.Replicas {
				t.Logf("%s logged:\n%s", r.Name, r.Server.LogTail())
			}
		}
		if t.Failed() {
			return
		}
		if isLate { // another process may have taken the processors
			c.logTails()
		}
		if c.isSynchronous && result.Lost > 0 {
			t.Errorf("%s: %d acknowledged writes are lost", f.name, result.Lost)
		}
		t.Logf("FIGURE %s: %s: a standby was promoted after %.1f s; no write for %.1f s, of at most %v and %v; %d acknowledged writes lost",
			t.Name(), f.name, c.takeover.Seconds(), result.Unavailable.Seconds(), c.timeout, grace, result.Lost)
		c.takeover = 0
	}
}

// pgpoolSettings has a Pgpool-II send all statements to one server, which has a Unix socket.
const pgpoolSettings = `
backend_clustering_mode = 'streaming_replication'
load_balance_mode = off
sr_check_period = 0
listen_addresses = '127.0.0.1'
port = %s
pcp_port = %s
socket_dir = '%s'
pcp_socket_dir = '%[3]s'
pid_file_name = '%[3]s/pgpool.pid'
logdir = '%[3]s'
backend_hostname0 = '%s'
backend_port0 = %d
`

// TestPgpool_IsRefused: byre does not connect through Pgpool-II, and its message says why.
func TestPgpool_IsRefused(t *testing.T) {
	server, err := pgx.ParseConfig(pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, *tools)
	port, empty := s.takePort(), s.write("empty.conf", "")
	config := s.write("pgpool.conf", fmt.Sprintf(pgpoolSettings, port, s.takePort(), s.dir, server.Host, server.Port))
	s.mustStart("pgpool", s.program("pgpool"), "-n", "-D", "-f", config, "-F", empty, "-a", empty)
	endpoint := fmt.Sprintf("postgres://%s@127.0.0.1:%s/%s", server.User, port, server.Database)
	want := "leads through Pgpool-II"
	storetest.EventuallyDone(t, want, func(ctx context.Context) (bool, error) {
		migrate := exec.CommandContext(ctx, programs.Byre.Path(), "migrate", "up", "--endpoint", endpoint) //nolint:gosec // built
		out, err := migrate.CombinedOutput()
		if err == nil {
			t.Fatalf("byre has connected: %s", out)
		}
		if strings.Contains(string(out), want) {
			return true, nil
		}
		return false, fmt.Errorf("%w: %s", err, out)
	})
}
