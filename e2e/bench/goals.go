package main

import (
	"fmt"
	"math"
	"strings"
)

// goal is a value that a measurement must reach.
type goal struct {
	suite, measurement string
	// ratio is how many times better than a stock server the value must be; 0 sets no such
	// goal.
	ratio float64
	// most is the highest allowed value, in unit; 0 sets no such goal.
	most float64
	unit string
	// reference names a measurement of the same server, the one through a bare proxy. The value may be at
	// most `times` times the reference's; if it is "", times that of the empty server.
	reference string
	times     float64
}

func goals() []goal {
	better := func(ratio float64, names ...string) (all []goal) {
		for _, name := range names {
			all = append(all, goal{suite: "standard", measurement: name, ratio: ratio})
		}
		return all
	}
	atMost := func(suite string, most float64, unit, name string) goal {
		return goal{suite: suite, measurement: name, most: most, unit: unit}
	}
	all := better(4, "list all Pods, JSON")
	all = append(all, better(3, "list all Pods, protobuf", "list all Pods, table")...)
	all = append(all, better(4, "list all Pods, metadata, JSON", "list all Pods, metadata, protobuf")...)
	for _, f := range listRepresentations {
		all = append(all, better(1, "first list of all Pods after a start, "+f.name)...)
	}
	for _, f := range []representation{asJSON, asProtobuf, asTable, asMetadataProtobuf} {
		all = append(all, better(1, "first list of all Pods after a change of everything, "+f.name)...)
	}
	all = append(all, better(4, "list Pods by spec.nodeName", "list Pods by label")...)
	all = append(all, better(3, "list Pods, page of 500")...)
	all = append(all, better(4, "get Pod, JSON, 64 clients", "get Pod, protobuf, 64 clients")...)
	all = append(all,
		better(3, "create Pod, JSON, 64 clients", "create Pod, protobuf, 64 clients",
			"create Pod, protobuf, 64 clients, ordinary user")...)
	all = append(all, better(1.3, "create ConfigMap, 1 client")...)
	all = append(all, better(3, "create ConfigMap, 64 clients",
		"patch Pod status, merge, 64 clients", "patch Pod status, strategic, 64 clients",
		"patch Pod status, strategic, 64 clients, ordinary user",
		"update Lease, protobuf, 64 clients", "update Lease, protobuf, 64 clients, ordinary user")...)
	for _, f := range []representation{asJSON, asProtobuf} {
		all = append(all, better(3, "events to 200 watchers, "+f.name+", CPU a delivery")...)
		all = append(all,
			goal{suite: "standard", measurement: "events to 200 watchers, " + f.name + ", CPU a delivery without the patches",
				times: 1.5})
		all = append(all, better(1, "events to 200 watchers, "+f.name+", delay p99")...)
	}
	all = append(all, atMost("standard", 80, "MB", "memory, idle"), atMost("standard", 200, "MB", "memory, with the Pods"),
		atMost("standard", 300, "MB", "memory, after everything"))
	all = append(all, better(4, "memory, after everything, with the store")...)
	all = append(all, atMost("standard", 300, "ms", "ready after start"),
		atMost("large", 1000, "ms", "ready after a restart, with the definitions"),
		atMost("large", 1000, "ms", "ready after a crash, with the definitions"),
		atMost("large", 600, "MB", "memory, with the Pods"), atMost("large", 600, "MB", "memory, after everything"))
	for _, f := range listRepresentations {
		all = append(all, goal{suite: "large", measurement: "list all Pods, " + f.name, ratio: 4})
	}
	all = append(all, atMost("large", 1.5, "ms", "list Pods by spec.nodeName"),
		atMost("large", 20, "ms", "list Pods by label"), atMost("large", 15, "ms", "list Pods, page of 500"))
	for _, k := range createKinds {
		all = append(all,
			goal{suite: "large", measurement: fmt.Sprintf("create Pod, %s, 64 clients%s", k.name, k.by.suffix), ratio: 3})
	}
	return append(all,
		goal{suite: "aggregation", measurement: "get Flunder, CPU added through the server",
			reference: "get Flunder, CPU added through a bare proxy", times: 2},
		goal{suite: "aggregation", measurement: "get Flunder, CPU added through the server", ratio: 2})
}

// text describes the goal.
func (g goal) text() string {
	switch {
	case g.ratio == 1:
		return "no worse"
	case g.ratio > 0:
		return fmt.Sprintf("%g×", g.ratio)
	case g.most > 0:
		return fmt.Sprintf("≤ %g %s", g.most, g.unit)
	default:
		return fmt.Sprintf("≤ %g× %s", g.times, g.bare())
	}
}

// bare names the server that does nothing with which the goal compares.
func (g goal) bare() string {
	if g.reference == "" {
		return "an empty server"
	}
	return "a bare proxy"
}

// judge returns what a target has reached, and whether that meets the goal.
func (g goal) judge(r *results, m *measurement, target string) (reached string, isMet bool) {
	switch {
	case g.ratio > 0:
		ratio := m.ratio(target, stock)
		return fmt.Sprintf("%.2f×", ratio), ratio >= g.ratio
	case g.most > 0:
		value := median(m.Values[target])
		return format(value, m.Unit), value <= g.most
	default:
		least := math.NaN()
		if g.reference == "" {
			least = median(m.Values[empty])
		} else if reference := r.find(g.suite, g.reference); reference != nil {
			least = median(reference.Values[target])
		}
		times := median(m.Values[target]) / least
		return fmt.Sprintf("%.2f× %s", times, g.bare()), times <= g.times
	}
}

// goalTable returns the table of goals. It says which were not measured and prints the
// missed ones in bold.
func goalTable(r *results) string {
	var b strings.Builder
	b.WriteString("| | goal | " + onSQLite + " | | CPU | " + onPostgres + " | | CPU | " + stock + " |\n|---|" +
		strings.Repeat("---:|", 8) + "\n")
	for _, g := range goals() {
		name := g.measurement
		if g.suite == "large" {
			name = "100,000 Pods: " + name
		}
		m := r.find(g.suite, g.measurement)
		if m == nil {
			fmt.Fprintf(&b, "| %s | %s | not measured | | | not measured | | | |\n", name, g.text())
			continue
		}
		fmt.Fprintf(&b, "| %s | %s |", name, g.text())
		for _, target := range []string{onSQLite, onPostgres} {
			if len(m.Values[target]) == 0 {
				b.WriteString(" not measured | | |")
				continue
			}
			reached, isMet := g.judge(r, m, target)
			if !isMet {
				reached = "**" + reached + ", missed**"
			}
			fmt.Fprintf(&b, " %s | %s | %s |", format(median(m.Values[target]), m.Unit), reached, r.cpuRatio(g, target))
		}
		fmt.Fprintf(&b, " %s |\n", format(median(m.Values[stock]), m.Unit))
	}
	return b.String()
}

// cpuRatio returns how many times less processor time than a stock server a target takes
// for the work of a goal. On a shared machine that is known more exactly than a rate. It is
// "" if the processor time was not measured.
func (r *results) cpuRatio(g goal, target string) string {
	m := r.find(g.suite, g.measurement+", CPU")
	if m == nil || len(m.Values[target]) == 0 || len(m.Values[stock]) == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f×", m.ratio(target, stock))
}
