package failover

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"byre/e2e/programs"
	"byre/e2e/robustness"
)

var (
	tools      = flag.String("tools", "", "the folder that .ci/failover prints; the tests are skipped without it")
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
		{"pg_auto_failover", newAutoFailover},
		{"repmgr", newRepmgr},
		{"Pgpool-II", newPgpool},
		{"Pgpool-II that balances reads", newPgpoolBalancing},
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
	for _, f := range faults {
		if ok, err := regexp.MatchString(*only, f.name); err != nil || !ok {
			continue
		}
		result := robustness.RunFault(t, e, f.on(c), *out)
		if t.Failed() {
			for _, r := range e.Replicas {
				t.Logf("%s logged:\n%s", r.Name, r.Server.LogTail())
			}
			return
		}
		if c.isSynchronous && result.Lost > 0 {
			t.Errorf("%s: %d acknowledged writes are lost", f.name, result.Lost)
		}
		t.Logf("FIGURE %s: %s: a standby was promoted after %.1f s; no write for %.1f s, of at most %v and %v; %d acknowledged writes lost",
			t.Name(), f.name, c.takeover.Seconds(), result.Unavailable.Seconds(), c.timeout, grace, result.Lost)
		c.takeover = 0
	}
}
