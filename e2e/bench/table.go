package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// figures are the results: a row a figure, a column a target.
type figures struct {
	columns []string
	rows    []*row
}

type row struct {
	name, unit string
	// less says that a smaller figure is the better one.
	less   bool
	values map[string][]float64
}

func (f *figures) add(name, unit string, less bool, target string, value float64) {
	for _, r := range f.rows {
		if r.name == name {
			r.values[target] = append(r.values[target], value)
			return
		}
	}
	f.rows = append(f.rows, &row{name, unit, less, map[string][]float64{target: {value}}})
}

// print writes a Markdown table with medians, and for every column but the last
// how many times better it is than the last.
func (f *figures) print(w io.Writer) error {
	var b strings.Builder
	base := f.columns[len(f.columns)-1]
	b.WriteString("| |")
	for _, c := range f.columns {
		b.WriteString(" " + c + " |")
		if c != base {
			b.WriteString(" times better |")
		}
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", 2*len(f.columns)-1) + "\n")
	for _, r := range f.rows {
		fmt.Fprintf(&b, "| %s |", r.name)
		against := median(r.values[base])
		for _, c := range f.columns {
			v := median(r.values[c])
			fmt.Fprintf(&b, " %s |", format(v, r.unit))
			if c == base {
				continue
			}
			times := v / against
			if r.less {
				times = against / v
			}
			fmt.Fprintf(&b, " %.2f |", times)
		}
		b.WriteString("\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return math.NaN()
	}
	return sorted[len(sorted)/2]
}

func format(v float64, unit string) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f %s", v, unit)
	case v >= 10:
		return fmt.Sprintf("%.1f %s", v, unit)
	default:
		return fmt.Sprintf("%.2f %s", v, unit)
	}
}
