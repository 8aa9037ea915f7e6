package robustness

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"byre/e2e/document"
	"byre/e2e/programs"
)

var (
	duration = flag.Duration("duration", 0,
		"how long the faults run on each database, again and again; 0 runs the short form once")
	only   = flag.String("faults", "", "run the faults whose names match this regular expression only")
	onlyOn = flag.String("database", "",
		"run only on the kinds that have this in their name: sqlite, postgres, machines")
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
	kinds := append([]string{SQLite, Postgres}, machineKinds...)
	if *duration == 0 { // building versitygw takes two minutes
		kinds = slices.DeleteFunc(kinds, func(kind string) bool { return kind == MachinesVersitygw })
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			if !strings.Contains(kind, *onlyOn) {
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
		for i, f := range Faults() {
			if !f.concerns(kind) || !pattern.MatchString(f.Name) || *duration == 0 && *only == "" && f.IsLong {
				continue
			}
			if !f.isAlone() && shared == nil {
				shared = startEnv(t, kind, Fault{})
			}
			if !f.isAlone() {
				report.add(RunFault(t, shared, f, *out))
			} else {
				t.Run(fmt.Sprintf("own-%d-%d", n, i), func(t *testing.T) { report.add(RunFault(t, startEnv(t, kind, f), f, *out)) })
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
	e, err := NewEnv(t, database, n)
	if err != nil {
		t.Fatal(err)
	}
	if f.Prepare != nil {
		if err := f.Prepare(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e
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
	if err := os.WriteFile(filepath.Join(*out, "tables.md"), []byte(c.Faults()), 0o600); err != nil {
		t.Error(err)
	}
	t.Logf("the results are in %s", path)
	if *docs != "" {
		if err := document.Update(filepath.Join(*docs, "reliability.md"), "robustness", c.Tables()); err != nil {
			t.Error(err)
		}
	}
}
