package robustness

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"byre/e2e/document"
	"byre/e2e/programs"
	"byre/e2e/robustness/history"
	"byre/e2e/robustness/traffic"
)

var (
	duration = flag.Duration("duration", 0, "how long the faults run on each database, again and again; 0 runs the short form once")
	only     = flag.String("faults", "", "run the faults whose names match this regular expression only")
	onlyOn   = flag.String("database", "", "run on this kind only: sqlite, postgres, or two machines")
	replicas = flag.Int("replicas", 2, "how many processes share a PostgreSQL")
	docs     = flag.String("docs", "", "write the tables into reliability.md of this folder")
	out      = flag.String("out", "../../bin/robustness", "where results and the histories of failures go")
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(programs.Main(m, programs.Byre, programs.Faulty))
}

// TestRobustness_KeepsPromisesUnderFaults runs each fault under traffic through REST.
func TestRobustness_KeepsPromisesUnderFaults(t *testing.T) {
	var report collector
	t.Cleanup(func() { report.save(t) }) // after the parallel tests
	for _, kind := range []string{SQLite, Postgres, Machines, MachinesSync} {
		t.Run(kind, func(t *testing.T) {
			if *onlyOn != "" && *onlyOn != kind {
				t.Skip("not asked for")
			}
			t.Parallel()
			runFaults(t, kind, &report)
		})
	}
}

// runFaults runs the faults of a database: each once, or again and again.
func runFaults(t *testing.T, kind string, report *collector) {
	pattern, err := regexp.Compile(*only)
	if err != nil {
		t.Fatal(err)
	}
	var shared *Env
	begin := time.Now()
	for n := 0; ; n++ {
		for _, f := range Faults() {
			if !f.concerns(kind) || !pattern.MatchString(f.Name) || *duration == 0 && *only == "" && f.IsLong {
				continue
			}
			if !f.isAlone() && shared == nil {
				shared = startEnv(t, kind, Fault{})
			}
			if !f.isAlone() {
				report.add(runFault(t, shared, f))
			} else {
				t.Run("own", func(t *testing.T) { report.add(runFault(t, startEnv(t, kind, f), f)) })
			}
			if t.Failed() || *duration > 0 && time.Since(begin) > *duration {
				return
			}
		}
		if *duration == 0 {
			return
		}
	}
}

func startEnv(t *testing.T, kind string, f Fault) *Env {
	t.Helper()
	n := 1
	switch {
	case kind == Postgres:
		n = *replicas
	case isMachines(kind):
		n = 2
	}
	f.Site.Replicas = n
	database := newDatabase(t, kind, f.Site)
	e, err := newEnv(t, database, n)
	if err != nil {
		t.Fatal(err)
	}
	if f.Prepare != nil {
		if err := f.Prepare(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e
}

// options are those of the traffic in every episode.
var options = traffic.Options{Keys: 6, Writers: 2, Watchers: 2, Pause: 10 * time.Millisecond, Timeout: 5 * time.Second}

func runFault(t *testing.T, e *Env, f Fault) *Result {
	t.Helper()
	o := options
	o.Seed, o.NoTouch = rand.Uint64(), e.NoTouch
	p := &episode{Env: e, fault: f, namespace: fmt.Sprintf("episode-%d", o.Seed)}
	result, h, err := p.run(t.Context(), o)
	if err != nil {
		t.Errorf("%s: %v", f.Name, err)
		for _, r := range e.Replicas {
			if r.Server != nil {
				t.Logf("%s logged:\n%s", r.Name, r.Server.LogTail())
			}
		}
	}
	if result == nil {
		return nil
	}
	t.Logf("%s on %s: %d operations, %d acknowledged writes, %d events, unavailable %.2f s, recovery %.2f s, errors %v, informers after %.2f s, lost %d writes of the last %.2f s",
		f.Name, e.Database.Kind, result.Operations, result.Acknowledged, result.Events, result.Unavailable.Seconds(), result.Recovery.Seconds(), result.Errors, result.Informers.Seconds(), result.Lost, result.LostFor.Seconds())
	for _, v := range result.Violations {
		t.Errorf("%s: %s", f.Name, v)
	}
	if t.Failed() {
		saveHistory(t, h, p.namespace)
	}
	return result
}

// collector is a report that several tests add to.
type collector struct {
	mu sync.Mutex
	Report
}

func (c *collector) add(r *Result) {
	if r == nil {
		return // the test failed before it had a result
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Add(r, time.Now())
}

// save keeps the report and writes it into the page.
func (c *collector) save(t *testing.T) {
	path := filepath.Join(*out, "results.json")
	if err := c.Save(path); err != nil {
		t.Error(err)
		return
	}
	t.Logf("the results are in %s", path)
	if *docs != "" {
		if err := document.Update(filepath.Join(*docs, "reliability.md"), "robustness", c.Tables()); err != nil {
			t.Error(err)
		}
	}
}

// saveHistory keeps what led to a failure.
func saveHistory(t *testing.T, h *history.History, name string) {
	t.Helper()
	path := filepath.Join(*out, name+".json")
	text, err := json.Marshal(h)
	if err == nil {
		err = os.MkdirAll(*out, 0o755)
	}
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	t.Logf("the history is in %s (%v)", path, err)
}
