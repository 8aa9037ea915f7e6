package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"byre/e2e/programs"
)

// results are all that a run measured.
type results struct {
	Started   time.Time `json:"started"`
	Version   string    `json:"version"`
	CPUs      int       `json:"cpus"`
	Sizes     sizes     `json:"sizes"`
	Cluster   []*soaked `json:"cluster"`
	K0smotron []*churn  `json:"k0smotron"`
	Verdicts  []verdict `json:"verdicts"`
}

func newResults(ctx context.Context, s sizes) (*results, error) {
	version, err := exec.CommandContext(ctx, programs.Byre.Path(), "version").Output()
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(string(version), "\n")
	return &results{Started: time.Now().UTC().Truncate(time.Second), Version: first, CPUs: runtime.NumCPU(), Sizes: s}, nil
}

// readResults reads what write has written.
func readResults(path string) (*results, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &results{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// write writes results.json and tables.md into a folder.
func (r *results) write(dir string) error {
	r.Verdicts = r.judge()
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return errors.Join(
		os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "results.json"), append(data, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, "tables.md"), []byte(r.allTables()), 0o644),
	)
}

// tables are all tables by name; what was not measured is empty.
func (r *results) tables() map[string]string {
	return map[string]string{
		"run": r.runLine(), "cluster": r.clusterTable(), "latency": r.latencyTable(), "requests": r.requestTable(),
		"k0smotron": r.k0smotronTable(), "verdicts": r.verdictTable(),
	}
}

// pageTables are the tables of docs/soak.md: tables without what only a reader of one run needs.
func (r *results) pageTables() map[string]string {
	all := r.tables()
	all["k0smotron"], all["verdicts"] = r.k0smotronSummary(), r.verdictLine()
	return all
}

func (r *results) allTables() string {
	var b strings.Builder
	all := r.tables()
	for _, name := range []string{"run", "cluster", "latency", "requests", "k0smotron", "verdicts"} {
		if all[name] != "" {
			fmt.Fprintf(&b, "## %s\n\n%s\n", name, all[name])
		}
	}
	return b.String()
}

func (r *results) runLine() string {
	replicas := ""
	if r.Sizes.Replicas > 1 {
		replicas = fmt.Sprintf("%d replicas on PostgreSQL, ", r.Sizes.Replicas)
	}
	return fmt.Sprintf("%s, %s; %d processors, %s; %v a server, %s%d nodes, %d Pods, %g Pods replaced a second.\n",
		r.Started.Format(time.DateOnly), r.Version, r.CPUs, runtime.Version(), r.Sizes.Duration, replicas, r.Sizes.Nodes,
		r.Sizes.Pods, r.Sizes.Churn)
}

// table is a Markdown table; the first column has names, the others figures.
func table(head []string, rows [][]string) string {
	if len(rows) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |\n|---|%s\n", strings.Join(head, " | "), strings.Repeat("---:|", len(head)-1))
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
	}
	return b.String()
}

// clusterRows say what is told of each server.
var clusterRows = []struct {
	name  string
	value func(*soaked) string
}{
	{"all Pods ready after", func(s *soaked) string { return fmt.Sprintf("%.0f s", s.Filled) }},
	{"rollouts", func(s *soaked) string { return fmt.Sprint(s.Rollouts) }},
	{"requests a second", func(s *soaked) string { return fmt.Sprintf("%.0f", s.perSecond()) }},
	{"processors, server", func(s *soaked) string {
		return fmt.Sprintf("%.3f", s.rate(func(s sample) float64 { return s.ServerCPU }))
	}},
	{"processors, database", func(s *soaked) string {
		return fmt.Sprintf("%.3f", s.rate(func(s sample) float64 { return s.StoreCPU }))
	}},
	{"CPU a request", func(s *soaked) string { return fmt.Sprintf("%.0f µs", s.cpu()/s.perSecond()*1e6) }},
	{"memory of the server, mean of the second half", func(s *soaked) string {
		return megabytes(s.mean(func(s sample) float64 { return float64(s.ServerMemory) }))
	}},
	{"memory of the database", func(s *soaked) string {
		return megabytes(s.mean(func(s sample) float64 { return float64(s.StoreMemory) }))
	}},
	{"trend of the memory, all", func(s *soaked) string { return s.trend(sample.memory, 1e6, "MB") }},
	{"goroutines", func(s *soaked) string {
		return fmt.Sprintf("%.0f", s.mean(func(s sample) float64 { return float64(s.Goroutines) }))
	}},
	{"trend of the goroutines", func(s *soaked) string {
		return s.trend(func(s sample) float64 { return float64(s.Goroutines) }, 1, "")
	}},
	{"database at the beginning", func(s *soaked) string { return megabytes(float64(s.Samples[0].DatabaseSize)) }},
	{"database at the end", func(s *soaked) string {
		return megabytes(float64(s.Samples[len(s.Samples)-1].DatabaseSize))
	}},
	{"watch latency, p50", func(s *soaked) string { return fmt.Sprintf("%.1f ms", s.Watch.P50*1e3) }},
	{"watch latency, p99", func(s *soaked) string { return fmt.Sprintf("%.1f ms", s.Watch.P99*1e3) }},
	{"errors of clients, answers with 5xx", func(s *soaked) string {
		return fmt.Sprintf("%d, %v", s.Errors, sum(s.Failures))
	}},
}

func megabytes(bytes float64) string { return fmt.Sprintf("%.0f MB", bytes/1e6) }

func (s *soaked) mean(value func(sample) float64) float64 {
	_, mean := trend(s.Samples, value)
	return mean
}

func (s *soaked) trend(value func(sample) float64, unit float64, name string) string {
	rise, _ := trend(s.Samples, value)
	return strings.TrimSpace(fmt.Sprintf("%+.0f %s", rise/unit, name))
}

func (s *soaked) rate(value func(sample) float64) float64 {
	first, last := s.Samples[0], s.Samples[len(s.Samples)-1]
	return (value(last) - value(first)) / (last.At - first.At)
}

func (s *soaked) perSecond() float64 { return sum(s.Requests) }

func sum(counts map[string]float64) (all float64) {
	for _, n := range counts {
		all += n
	}
	return all
}

func (r *results) measured() []*soaked {
	return slices.DeleteFunc(slices.Clone(r.Cluster), func(s *soaked) bool { return len(s.Samples) < 2 })
}

func (r *results) heads(of []*soaked) []string {
	head := []string{""}
	for _, s := range of {
		head = append(head, s.Target)
	}
	return head
}

func (r *results) clusterTable() string {
	measured := r.measured()
	if len(measured) == 0 {
		return ""
	}
	var rows [][]string
	for _, row := range clusterRows {
		line := []string{row.name}
		for _, s := range measured {
			line = append(line, row.value(s))
		}
		rows = append(rows, line)
	}
	return table(r.heads(measured), rows)
}

// perTarget is a table of a figure by name and target; what a target does not have is empty.
func (r *results) perTarget(names func(*soaked) map[string]string) string {
	measured := r.measured()
	all := map[string]bool{}
	for _, s := range measured {
		for name := range names(s) {
			all[name] = true
		}
	}
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		line := []string{name}
		for _, s := range measured {
			line = append(line, names(s)[name])
		}
		rows = append(rows, line)
	}
	return table(r.heads(measured), rows)
}

func (r *results) latencyTable() string {
	return r.perTarget(func(s *soaked) map[string]string {
		all := map[string]string{}
		for _, l := range s.Latencies {
			if !math.IsNaN(l.P99) {
				all[fmt.Sprintf("%s, scope %s, at most %g s", l.Verb, l.Scope, l.Objective)] = fmt.Sprintf("%.0f ms", l.P99*1e3)
			}
		}
		return all
	})
}

func (r *results) requestTable() string {
	return r.perTarget(func(s *soaked) map[string]string {
		all := map[string]string{}
		for verb, n := range s.Requests {
			all[verb] = fmt.Sprintf("%.1f /s", n)
		}
		return all
	})
}

func (r *results) k0smotronTable() string {
	var rows [][]string
	loads := slices.Clone(r.K0smotron)
	slices.SortStableFunc(loads, func(a, b *churn) int {
		return cmp.Or(strings.Compare(a.Load, b.Load), a.Clients-b.Clients)
	})
	for _, l := range loads {
		lag := ""
		if l.Watch.Count > 0 {
			lag = fmt.Sprintf("%.0f ms", l.Watch.P99*1e3)
		}
		cpu := fmt.Sprintf("%.1f s", l.CPU)
		if l.Ended != "" {
			cpu = "a process ended"
		}
		rows = append(rows, []string{
			l.name(), l.Target, fmt.Sprintf("%.0f /s", l.PerSecond), fmt.Sprintf("%.0f ms", l.Latency.P99*1e3),
			fmt.Sprint(l.Errors), lag, fmt.Sprintf("%d, %d", l.MissedEvents, l.Reconnects), cpu,
		})
	}
	return table([]string{"", "", "", "p99", "errors", "watch lag, p99", "events missed, watches ended", "CPU"}, rows)
}

// k0smotronSummary has a row for each load and a column for each server, with the rate, the p99 of
// a request, and what failed.
func (r *results) k0smotronSummary() string {
	loads := slices.Clone(r.K0smotron)
	slices.SortStableFunc(loads, func(a, b *churn) int {
		return cmp.Or(strings.Compare(a.Load, b.Load), a.Clients-b.Clients)
	})
	head := []string{""}
	for _, l := range loads {
		if !slices.Contains(head, l.Target) {
			head = append(head, l.Target)
		}
	}
	var rows [][]string
	for _, l := range loads {
		if len(rows) == 0 || rows[len(rows)-1][0] != l.name() {
			rows = append(rows, make([]string, len(head)))
			rows[len(rows)-1][0] = l.name()
		}
		rows[len(rows)-1][slices.Index(head, l.Target)] = l.summary()
	}
	return table(head, rows)
}

func (c *churn) summary() string {
	text := fmt.Sprintf("%.0f /s, %.0f ms", c.PerSecond, c.Latency.P99*1e3)
	for _, failed := range []struct {
		n    int64
		what string
	}{{c.Errors, "errors"}, {int64(c.MissedEvents), "events missed"}, {int64(c.Reconnects), "watches ended"}} {
		if failed.n > 0 {
			text += fmt.Sprintf(", %d %s", failed.n, failed.what)
		}
	}
	if c.Ended != "" {
		text += ", a process ended"
	}
	return text
}

// verdictLine counts the judgements, and names those that byre has not met.
func (r *results) verdictLine() string {
	all := r.judge()
	if len(all) == 0 {
		return ""
	}
	var missed []string
	for _, v := range all {
		if !v.IsGood {
			missed = append(missed, fmt.Sprintf("%s (%s: %s)", v.What, v.Target, v.Found))
		}
	}
	if len(missed) == 0 {
		return fmt.Sprintf("byre meets all %d judgements.\n", len(all))
	}
	return fmt.Sprintf("byre misses %d of %d judgements: %s.\n", len(missed), len(all), strings.Join(missed, "; "))
}

func (r *results) verdictTable() string {
	var rows [][]string
	for _, v := range r.judge() {
		reached := "yes"
		if !v.IsGood {
			reached = "**no**"
		}
		rows = append(rows, []string{v.What, v.Target, v.Found, reached})
	}
	return table([]string{"", "", "found", "reached"}, rows)
}
