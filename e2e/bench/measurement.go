package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"runtime"
	"slices"
	"time"
)

// results are the results of a run. They are written as JSON; all tables and plots are made
// from them.
type results struct {
	Started time.Time `json:"started"`
	// Version is byre's version. Machine describes the machine that the values depend on.
	Version string  `json:"version"`
	Machine machine `json:"machine"`
	// Sizes are the sizes of each suite.
	Sizes map[string]sizes `json:"sizes"`
	// Complete are the suites that ran to their end on every target.
	Complete     []string       `json:"complete"`
	Targets      []string       `json:"targets"`
	Measurements []*measurement `json:"measurements"`
	Series       []*series      `json:"series"`

	suite string // the suite that runs
}

type machine struct {
	OS   string `json:"os"`
	Arch string `json:"arch"`
	CPUs int    `json:"cpus"`
	Go   string `json:"go"`
}

// measurement is one figure of every target.
type measurement struct {
	Suite string `json:"suite"`
	Name  string `json:"name"`
	Unit  string `json:"unit"`
	// Lower says that lower values are better.
	Lower bool `json:"lowerIsBetter"`
	// Values are the values of each target, one for each round. Values with the same index
	// were measured one directly after the other.
	Values map[string][]float64 `json:"values"`
}

// series is one quantity of every target as a function of the number of objects.
type series struct {
	Suite  string             `json:"suite"`
	Name   string             `json:"name"`
	Unit   string             `json:"unit"`
	Points map[string][]point `json:"points"`
}

type point struct {
	Objects int     `json:"objects"`
	Value   float64 `json:"value"`
}

func newResults(version string) *results {
	return &results{
		Started: time.Now().UTC().Truncate(time.Second),
		Version: version,
		Machine: machine{runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version()},
		Sizes:   map[string]sizes{},
	}
}

// add records the value of one round.
func (r *results) add(name, unit string, lower bool, target string, value float64) {
	m := r.find(r.suite, name)
	if m == nil {
		m = &measurement{r.suite, name, unit, lower, map[string][]float64{}}
		r.Measurements = append(r.Measurements, m)
	}
	m.Values[target] = append(m.Values[target], value)
	if !slices.Contains(r.Targets, target) {
		r.Targets = append(r.Targets, target)
	}
}

// addDuration records a duration in milliseconds.
func (r *results) addDuration(name, target string, d time.Duration) {
	r.add(name, "ms", true, target, ms(d))
}

// plot records a value for a number of objects.
func (r *results) plot(name, unit, target string, objects int, value float64) {
	i := slices.IndexFunc(r.Series, func(s *series) bool { return s.Name == name && s.Suite == r.suite })
	if i < 0 {
		i = len(r.Series)
		r.Series = append(r.Series, &series{r.suite, name, unit, map[string][]point{}})
	}
	r.Series[i].Points[target] = append(r.Series[i].Points[target], point{objects, value})
}

// find returns nil if there is no such measurement.
func (r *results) find(suite, name string) *measurement {
	for _, m := range r.Measurements {
		if m.Suite == suite && m.Name == name {
			return m
		}
	}
	return nil
}

// ratio returns how many times better target is than base: the median of the ratios of all
// rounds, because the machine may be slower in one round than in another. NaN means that
// one of the two was not measured.
func (m *measurement) ratio(target, base string) float64 {
	ours, theirs := m.Values[target], m.Values[base]
	if len(ours) != len(theirs) {
		ours, theirs = []float64{median(ours)}, []float64{median(theirs)}
	}
	var ratios []float64
	for i := range ours {
		if m.Lower {
			ratios = append(ratios, theirs[i]/ours[i])
		} else {
			ratios = append(ratios, ours[i]/theirs[i])
		}
	}
	return median(ratios)
}

// median returns NaN for no values.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	switch {
	case n == 0:
		return math.NaN()
	case n%2 == 0:
		return (sorted[n/2-1] + sorted[n/2]) / 2
	default:
		return sorted[n/2]
	}
}

// percentile returns the lowest of the values that a share p of them does not exceed.
func percentile(values []time.Duration, p float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, int(p*float64(len(sorted))))]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (r *results) write(path string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// readResults reads the files of several runs. If several files have a suite, the last one
// counts.
func readResults(paths []string) (*results, error) {
	all := &results{Sizes: map[string]sizes{}}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var r results
		if err := json.Unmarshal(data, &r); err != nil {
			return nil, err
		}
		all.merge(&r)
	}
	return all, nil
}

// resume takes over the results of an earlier run of the same program from a file. It does
// nothing if there is no such file.
func (r *results) resume(path string) error {
	earlier, err := readResults([]string{path})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case earlier.Version != r.Version:
		return fmt.Errorf("%s: has the results of another program, %q: -resume goes on with those of %q", path,
			earlier.Version, r.Version)
	}
	for suite := range earlier.Sizes {
		if !slices.Contains(earlier.Complete, suite) {
			earlier.drop(suite)
		}
	}
	r.merge(earlier)
	return nil
}

// drop deletes the results of a suite.
func (r *results) drop(suite string) {
	delete(r.Sizes, suite)
	r.Complete = slices.DeleteFunc(r.Complete, func(s string) bool { return s == suite })
	r.Measurements = slices.DeleteFunc(r.Measurements, func(m *measurement) bool { return m.Suite == suite })
	r.Series = slices.DeleteFunc(r.Series, func(s *series) bool { return s.Suite == suite })
}

func (r *results) merge(later *results) {
	r.Started, r.Version, r.Machine = later.Started, later.Version, later.Machine
	for suite, size := range later.Sizes {
		r.drop(suite)
		r.Sizes[suite] = size
	}
	r.Complete = append(r.Complete, later.Complete...)
	r.Measurements = append(r.Measurements, later.Measurements...)
	r.Series = append(r.Series, later.Series...)
	for _, t := range later.Targets {
		if !slices.Contains(r.Targets, t) {
			r.Targets = append(r.Targets, t)
		}
	}
}
