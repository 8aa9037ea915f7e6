package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// tables returns all tables by name.
func tables(r *results) map[string]string {
	all := map[string]string{"goals": goalTable(r), "run": runLine(r), "store": table(r, isOfStore),
		"costs": table(r, isCost)}
	for _, s := range suiteNames() {
		all[s] = table(r, func(m *measurement) bool { return m.Suite == s && !isOfStore(m) })
	}
	return all
}

// costs are the measurements from which package model computes what clusters of many nodes ask for.
var costs = []string{
	"create Pod, protobuf, 64 clients, ordinary user, CPU",
	"patch Pod status, strategic, 64 clients, ordinary user, CPU",
	"update Lease, protobuf, 64 clients, ordinary user, CPU",
	"events to 200 watchers, protobuf, CPU a delivery",
}

func isCost(m *measurement) bool {
	return m.Suite == "standard" && slices.Contains(costs, strings.TrimSuffix(m.Name, " of the store"))
}

// isOfStore reports whether a measurement is of the store's processes alone.
func isOfStore(m *measurement) bool { return strings.HasSuffix(m.Name, " of the store") }

// runLine says what was measured and on which machine.
func runLine(r *results) string {
	version, _, _ := strings.Cut(r.Version, "\n")
	return fmt.Sprintf("%s, %s; %s/%s, %d processors, %s.\n", r.Started.Format("2006-01-02"), version, r.Machine.OS,
		r.Machine.Arch, r.Machine.CPUs, r.Machine.Go)
}

// allTables returns every table under its name.
func allTables(r *results) string {
	var b strings.Builder
	b.WriteString(runLine(r))
	byName := tables(r)
	for _, name := range append([]string{"goals", "store"}, suiteNames()...) {
		if byName[name] != "" {
			fmt.Fprintf(&b, "\n## %s\n\n%s", name, byName[name])
		}
	}
	return b.String()
}

// table returns a Markdown table with the medians of some measurements. The column of each
// target has, beside the value, how many times better it is than a stock server. It returns
// "" if nothing was measured.
func table(r *results, isIn func(*measurement) bool) string {
	var rows []*measurement
	var columns []string
	for _, m := range r.Measurements {
		if !isIn(m) {
			continue
		}
		rows = append(rows, m)
		for _, target := range columnNames {
			if len(m.Values[target]) > 0 && !slices.Contains(columns, target) {
				columns = append(columns, target)
			}
		}
	}
	if len(rows) == 0 {
		return ""
	}
	slices.SortFunc(columns, func(a, b string) int { return columnOrder(a) - columnOrder(b) })
	var b strings.Builder
	b.WriteString("| |")
	for _, c := range columns {
		b.WriteString(" " + c + " |")
		if isCompared(c, columns) {
			b.WriteString(" times better |")
		}
	}
	b.WriteString("\n|---|")
	for _, c := range columns {
		b.WriteString("---:|")
		if isCompared(c, columns) {
			b.WriteString("---:|")
		}
	}
	b.WriteString("\n")
	for _, m := range rows {
		fmt.Fprintf(&b, "| %s |", m.Name)
		for _, c := range columns {
			fmt.Fprintf(&b, " %s |", format(median(m.Values[c]), m.Unit))
			if !isCompared(c, columns) {
				continue
			}
			if ratio := m.ratio(c, stock); math.IsNaN(ratio) || math.IsInf(ratio, 0) {
				b.WriteString(" |")
			} else {
				fmt.Fprintf(&b, " %.2f |", ratio)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// columnNames are the targets in the order of their columns.
var columnNames = []string{
	onSQLite, onVolatile, onPostgres, onByreEtcdSQLite, onByreEtcdPostgres, onKine, onKinePostgres, stock, empty,
}

func columnOrder(target string) int { return slices.Index(columnNames, target) }

// isCompared reports whether there is a stock server's column to compare a column with.
func isCompared(target string, columns []string) bool {
	return slices.Contains(columns, stock) && target != stock && target != empty
}

// format returns "" for a value that was not measured.
func format(v float64, unit string) string {
	switch {
	case math.IsNaN(v):
		return ""
	case v >= 10_000 && unit == "µs":
		return format(v/1000, "ms")
	case v >= 100:
		return fmt.Sprintf("%.0f %s", v, unit)
	case v >= 10:
		return fmt.Sprintf("%.1f %s", v, unit)
	default:
		return fmt.Sprintf("%.2f %s", v, unit)
	}
}
