package main

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// The tests run the load for a short time, which shows that the harness works. Errors are
// judged, speed and memory are not.
func TestSoak_RunsForAMoment(t *testing.T) {
	t.Parallel()
	o := options{
		suites: clusterSuite, only: "postgres,stock", out: t.TempDir(),
		sizes: sizes{Duration: 8 * time.Second, Nodes: 20, Pods: 200, Churn: 5},
	}
	r := runSoak(t, o)
	if len(r.Cluster) != 2 {
		t.Fatalf("%d servers were measured", len(r.Cluster))
	}
	for _, s := range r.Cluster {
		for _, verb := range []string{"GET", "LIST", "PATCH", "POST", "PUT", "WATCH"} {
			if s.Requests[verb] == 0 {
				t.Errorf("%s: no %s was counted in %v", s.Target, verb, s.Requests)
			}
		}
		if s.Rollouts == 0 || s.Watch.Count == 0 || s.Watch.P99 <= 0 || len(s.Latencies) == 0 || len(s.Samples) < 3 {
			t.Errorf("%s: %d rollouts, watch latency %+v, %d latencies, %d samples", s.Target, s.Rollouts, s.Watch,
				len(s.Latencies), len(s.Samples))
		}
		last := s.Samples[len(s.Samples)-1]
		if s.cpu() <= 0 || last.ServerMemory == 0 || last.StoreMemory == 0 || last.DatabaseSize == 0 || last.Goroutines == 0 {
			t.Errorf("%s: %.3f processors, %+v", s.Target, s.cpu(), last)
		}
	}
	if tables, err := os.ReadFile(filepath.Join(o.out, "tables.md")); err != nil ||
		!strings.Contains(string(tables), "| watch latency, p99 |") {
		t.Errorf("the tables are\n%s, %v", tables, err)
	}
	if isGood, err := run(t.Context(), options{report: filepath.Join(o.out, "results.json")}); err != nil || !isGood {
		t.Errorf("reported later: good: %v, %v", isGood, err)
	}
}

// A server that ends under a load is a result, with the end of its log.
func TestK0smotron_TellsThatTheServerEnded(t *testing.T) {
	t.Parallel()
	target, err := startOnSQLite(t.Context(), t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	k := &k0smotron{sizes: sizes{Operations: 2}, target: target}
	c, err := k.run(t.Context(), "create", 1, func(context.Context, int) error {
		target.server.Kill()
		return errors.New("connection refused")
	})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(c.Ended, "signal: killed") || !strings.Contains(c.Ended, "Starting byre") || c.Errors != 2 {
		t.Errorf("%d errors, ended: %s", c.Errors, c.Ended)
	}
	for _, v := range (&results{K0smotron: []*churn{{Target: onSQLite, Ended: "ended"}}}).judge() {
		if v.IsGood {
			t.Errorf("judged good: %+v", v)
		}
	}
}

// The loads of k0smotron's benchmark have 1,000 clients, however few ConfigMaps they create.
func TestSoak_RunsK0smotronsLoads(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"sqlite", "postgres"} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			r := runSoak(t, options{
				suites: k0smotronSuite, only: server, out: t.TempDir(),
				sizes: sizes{Operations: 1000, Clients: intList{1000}, Timeout: 5 * time.Minute},
			})
			if len(r.K0smotron) != 3 {
				t.Errorf("%d loads were measured", len(r.K0smotron))
			}
			for _, l := range r.K0smotron {
				if l.Latency.Count != 1000 || l.Errors > 0 || l.MissedEvents > 0 {
					t.Errorf("%s: %d successes, %d errors, %d events missed: %s", l.name(), l.Latency.Count, l.Errors, l.MissedEvents,
						l.FirstError)
				}
			}
		})
	}
}

// runSoak runs a load that must pass, and returns its results.
func runSoak(t *testing.T, o options) *results {
	t.Helper()
	isGood, err := run(t.Context(), o)
	r, readErr := readResults(filepath.Join(o.out, "results.json"))
	if err != nil || readErr != nil || !isGood {
		t.Fatalf("good: %v, %v, %v, %+v", isGood, err, readErr, r)
	}
	return r
}

// TestAwaitPods_SurvivesFailedRequests: a request that fails does not end a run, and a server
// that ends does.
func TestAwaitPods_SurvivesFailedRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clientset := fake.NewClientset()
		failures := 3
		clientset.PrependReactor("list", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
			failures--
			if failures >= 0 {
				return true, nil, errors.New("connection refused")
			}
			return true,
				&appsv1.DeploymentList{Items: []appsv1.Deployment{{Spec: appsv1.DeploymentSpec{Replicas: new(int32(0))}}}}, nil
		})
		l := &load{target: &target{name: "a server"}, clientset: clientset}
		if err := l.awaitPods(t.Context()); err != nil {
			t.Error(err)
		}
		if failures != -1 {
			t.Errorf("%d requests after the failed ones", -failures)
		}
		failures = math.MaxInt
		ended := make(chan struct{})
		l.ended = ended
		time.AfterFunc(time.Minute, func() { close(ended) })
		if err := l.awaitPods(t.Context()); err == nil || !strings.Contains(err.Error(), "the server ended") {
			t.Errorf("a server that has ended: %v", err)
		}
	})
}

// TestLoad_CountsErrors: a write of the probe that fails is an error, and so is a request that
// was not answered in time.
func TestLoad_CountsErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clientset := fake.NewClientset()
		failed := false
		clientset.PrependReactor("patch", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			if failed {
				return false, nil, nil
			}
			failed = true
			return true, nil, errors.New("internal error")
		})
		l := &load{clientset: clientset}
		p, err := newProbe(t.Context(), clientset, clientset, l.note)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*probeInterval)
		defer cancel()
		if err := p.run(ctx); err != nil {
			t.Fatal(err)
		}
		if n := l.errors.Load(); n != 1 {
			t.Errorf("%d errors after one write that failed", n)
		}
		late, stop := finishing(t.Context())
		defer stop()
		<-late.Done()
		l.note(late, late.Err())
		if n := l.errors.Load(); n != 2 {
			t.Errorf("%d errors after a request without an answer too", n)
		}
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		l.note(cancelled, cancelled.Err())
		if n := l.errors.Load(); n != 2 {
			t.Errorf("%d errors after a request that was cancelled too", n)
		}
	})
}

// The page has a row for each load, with what failed, and names the judgements that byre has not met.
func TestPageTables_SummarizeLoads(t *testing.T) {
	t.Parallel()
	r := &results{K0smotron: []*churn{
		{Load: "create", Clients: 50, Target: onSQLite, PerSecond: 1250, Latency: percentiles{P99: 0.084}},
		{Load: "create", Clients: 50, Target: onPostgres, PerSecond: 1200, Latency: percentiles{P99: 0.1}, Errors: 3},
		{Load: "list", Clients: 50, Target: onPostgres, PerSecond: 2000, Latency: percentiles{P99: 0.03}},
	}}
	tables := r.pageTables()
	for _, want := range []string{"| create, 50 clients | 1250 /s, 84 ms | 1200 /s, 100 ms, 3 errors |\n",
		"| list, 50 clients |  | 2000 /s, 30 ms |\n"} {
		if !strings.Contains(tables["k0smotron"], want) {
			t.Errorf("no %q in\n%s", want, tables["k0smotron"])
		}
	}
	if want := "byre misses 1 of 3 judgements: create, 50 clients without errors (" + onPostgres +
		": 3 errors, 0 events missed).\n"; tables["verdicts"] != want {
		t.Errorf("%q, not %q", tables["verdicts"], want)
	}
}

func TestTrend_IsThatOfTheSecondHalf(t *testing.T) {
	t.Parallel()
	var samples []sample
	for i := range 101 {
		s := sample{At: float64(i), Goroutines: 1000 - 10*i}
		if i >= 50 {
			s.Goroutines = 100 + 2*i
		}
		samples = append(samples, s)
	}
	rise, mean := trend(samples, func(s sample) float64 { return float64(s.Goroutines) })
	if math.Abs(rise-100) > 1e-6 || math.Abs(mean-250) > 1e-6 {
		t.Errorf("rises by %v, mean %v", rise, mean)
	}
}

func TestHistogram_InterpolatesInABucket(t *testing.T) {
	t.Parallel()
	h := histogram{0.1: 50, 0.2: 90, 0.4: 100, math.Inf(1): 100}
	for q, want := range map[float64]float64{0.5: 0.1, 0.9: 0.2, 0.95: 0.3} {
		if got := h.quantile(q); math.Abs(got-want) > 1e-9 {
			t.Errorf("the quantile %v is %v, not %v", q, got, want)
		}
	}
	later := histogram{0.1: 60, 0.2: 100, 0.4: 110, math.Inf(1): 120}.since(h)
	if later.count() != 20 || later.quantile(0.99) != 0.4 {
		t.Errorf("%v has the quantile %v", later, later.quantile(0.99))
	}
}

func TestJudge_ComparesWithStock(t *testing.T) {
	t.Parallel()
	soakedWith := func(target string, cpu float64, memory, growth int64) *soaked {
		s := &soaked{Target: target, Latencies: []latency{{"GET", "resource", 10, 0.5, 1}}}
		for i := range int64(100) {
			s.Samples = append(s.Samples,
				sample{At: float64(i), ServerCPU: cpu * float64(i), ServerMemory: memory + growth*i, Goroutines: 100})
		}
		return s
	}
	r := &results{Sizes: sizes{Duration: time.Hour}, Cluster: []*soaked{
		soakedWith(onSQLite, 0.1, 100e6, 0), soakedWith(onPostgres, 0.2, 100e6, 1e6), soakedWith(onEtcd, 0.3, 900e6, 0),
	}}
	bad := map[string]bool{}
	for _, v := range r.judge() {
		if !v.IsGood {
			bad[v.Target+": "+v.What] = true
		}
	}
	for _, want := range []string{onPostgres + ": memory does not rise",
		onPostgres + ": less than half of stock's processor time"} {
		if !bad[want] {
			t.Errorf("not judged: %s", want)
		}
		delete(bad, want)
	}
	if len(bad) > 0 {
		t.Errorf("judged as bad: %v", bad)
	}
	r.Sizes.Duration = time.Minute
	if n := len(r.judge()); n != 2 {
		t.Errorf("%d judgements of a short run", n)
	}
}
