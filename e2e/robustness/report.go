package robustness

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Row is the outcome of all runs of one fault on one database.
type Row struct {
	Fault, Database string
	// Day is when it ran last.
	Day time.Time
	// Runs is how often it ran, Operations, Acknowledged, Events and Violations are sums.
	Runs, Operations, Acknowledged, Events, Violations int
	// Errors are the errors that clients got, of all runs, by kind.
	Errors map[string]int
	// Unavailable, Recovery and Informers are the greatest of all runs.
	Unavailable, Recovery, Informers time.Duration
	// Lost is a sum.
	Lost int `json:",omitempty"`
}

// Report collects results.
type Report struct{ Rows []*Row }

func (r *Report) row(fault, database string) *Row {
	for _, row := range r.Rows {
		if row.Fault == fault && row.Database == database {
			return row
		}
	}
	row := &Row{Fault: fault, Database: database, Errors: map[string]int{}}
	r.Rows = append(r.Rows, row)
	return row
}

// Add adds the result of one run.
func (r *Report) Add(result *Result, day time.Time) {
	row := r.row(result.Fault, result.Database)
	row.Day = day
	row.Runs++
	row.Operations += result.Operations
	row.Acknowledged += result.Acknowledged
	row.Events += result.Events
	row.Violations += len(result.Violations)
	for kind, n := range result.Errors {
		row.Errors[kind] += n
	}
	row.Unavailable = max(row.Unavailable, result.Unavailable)
	row.Recovery = max(row.Recovery, result.Recovery)
	row.Informers = max(row.Informers, result.Informers)
	row.Lost += result.Lost
}

// Save writes the report to a file. Rows of earlier reports that this one lacks stay.
func (r *Report) Save(path string) error {
	var earlier Report
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &earlier)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, row := range earlier.Rows {
		if known := r.row(row.Fault, row.Database); known.Runs == 0 {
			*known = *row
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if text, err = json.MarshalIndent(r, "", "  "); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// sorted returns the rows in the order of the faults, without those of faults that no longer exist.
func (r *Report) sorted() []*Row {
	order := func(row *Row) int {
		return slices.IndexFunc(Faults(), func(f Fault) bool { return f.Name == row.Fault })
	}
	rows := slices.DeleteFunc(slices.Clone(r.Rows), func(row *Row) bool { return order(row) < 0 })
	slices.SortStableFunc(rows, func(a, b *Row) int {
		if n := order(a) - order(b); n != 0 {
			return n
		}
		return -strings.Compare(a.Database, b.Database)
	})
	return rows
}

// Faults is a table with a row for each fault on each database.
func (r *Report) Faults() string {
	var b strings.Builder
	b.WriteString(
		"| fault | database | runs | what clients saw | acknowledged writes | kept | seconds without a write | seconds until all went on | violations |\n")
	b.WriteString("|---|---|---:|---|---:|---|---:|---:|---:|\n")
	for _, row := range r.sorted() {
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %d | %s | %.1f | %.1f | %d |\n", row.Fault, row.Database, row.Runs,
			row.errors(), row.Acknowledged, row.kept(), row.Unavailable.Seconds(), row.Recovery.Seconds(), row.Violations)
	}
	return b.String()
}

// Tables are the tables for docs/reliability.md, by name: a row for each group of faults on each database.
func (r *Report) Tables() map[string]string {
	groups := map[string]string{}
	for _, f := range Faults() {
		groups[f.Name] = f.Group
	}
	var grouped Report
	faults := map[*Row]int{}
	total := &Row{}
	for _, row := range r.sorted() {
		group := grouped.row(groups[row.Fault], row.Database)
		group.merge(row)
		total.merge(row)
		faults[group]++
	}
	var b strings.Builder
	b.WriteString(
		"| what breaks | database | faults | runs | acknowledged writes | kept | seconds without a write | seconds until all went on | violations |\n")
	b.WriteString("|---|---|---:|---:|---:|---|---:|---:|---:|\n")
	for _, row := range grouped.Rows {
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %s | %.1f | %.1f | %d |\n", row.Fault, row.Database, faults[row],
			row.Runs,
			row.Acknowledged, row.kept(), row.Unavailable.Seconds(), row.Recovery.Seconds(), row.Violations)
	}
	summary := fmt.Sprintf(
		"%s: %d runs of %d kinds, %d operations, %d acknowledged writes, %d events of watches, %d violations.\n",
		total.Day.Format("2006-01-02"), total.Runs, len(r.sorted()), total.Operations, total.Acknowledged, total.Events,
		total.Violations)
	return map[string]string{"faults": b.String(), "summary": summary}
}

// merge adds the runs of another row, but for what clients saw.
func (row *Row) merge(other *Row) {
	row.Runs += other.Runs
	row.Operations += other.Operations
	row.Acknowledged += other.Acknowledged
	row.Events += other.Events
	row.Violations += other.Violations
	row.Lost += other.Lost
	row.Unavailable = max(row.Unavailable, other.Unavailable)
	row.Recovery = max(row.Recovery, other.Recovery)
	if other.Day.After(row.Day) {
		row.Day = other.Day
	}
}

// errors says what clients saw, the most frequent first, as a mean of a run.
func (row *Row) errors() string {
	if len(row.Errors) == 0 {
		return "nothing"
	}
	kinds := slices.SortedFunc(maps.Keys(row.Errors), func(a, b string) int {
		if n := row.Errors[b] - row.Errors[a]; n != 0 {
			return n
		}
		return strings.Compare(a, b)
	})
	var words []string
	for _, kind := range kinds {
		words = append(words, fmt.Sprintf("%s (%.3g)", kind, float64(row.Errors[kind])/float64(row.Runs)))
	}
	return strings.Join(words, ", ")
}

func (row *Row) kept() string {
	switch {
	case row.Violations > 0:
		return "see violations"
	case row.Lost > 0:
		return fmt.Sprintf("all but the last %.3g that the standby lacked", float64(row.Lost)/float64(max(row.Runs, 1)))
	default:
		return "all"
	}
}
