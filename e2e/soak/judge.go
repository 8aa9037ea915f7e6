package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// verdict is a judgement of byre.
type verdict struct {
	Target string `json:"target"`
	What   string `json:"what"`
	Found  string `json:"found"`
	IsGood bool   `json:"isGood"`
}

// shortestJudged is the shortest run whose speed and trends say something: shorter ones
// show that the harness works.
const shortestJudged = 4 * time.Minute

// judge compares what byre has reached with its goals.
func (r *results) judge() (all []verdict) {
	add := func(target, what string, isGood bool, format string, args ...any) {
		all = append(all, verdict{Target: target, What: what, Found: fmt.Sprintf(format, args...), IsGood: isGood})
	}
	for _, s := range r.Cluster {
		if !isByre(s.Target) {
			continue
		}
		add(s.Target, "no errors of clients", s.Errors == 0, "%d %s", s.Errors, s.FirstError)
		if r.Sizes.Duration < shortestJudged {
			continue
		}
		add(s.Target, "no answers with 5xx", len(s.Failures) == 0, "%v", sum(s.Failures))
		for _, l := range s.Latencies {
			add(s.Target, fmt.Sprintf("p99 of %s, scope %s, at most %g s", l.Verb, l.Scope, l.Objective), l.P99 <= l.Objective,
				"%.3f s", l.P99)
		}
		rise, mean := trend(s.Samples, sample.memory)
		add(s.Target, "memory does not rise", rise <= mean/20+10e6, "%+.0f MB of %.0f MB", rise/1e6, mean/1e6)
		rise, mean = trend(s.Samples, func(s sample) float64 { return float64(s.Goroutines) })
		add(s.Target, "goroutines do not rise", rise <= mean/20+20, "%+.0f of %.0f", rise, mean)
		stock := r.soakedOn(onEtcd)
		if stock == nil {
			continue
		}
		ratio := s.cpu() / stock.cpu()
		add(s.Target, "less than half of stock's processor time", ratio < 0.5, "%.2f", ratio)
		ratio = s.memory() / stock.memory()
		add(s.Target, "less than half of stock's memory", ratio < 0.5, "%.2f", ratio)
	}
	for _, l := range r.K0smotron {
		if isByre(l.Target) {
			add(l.Target, l.name()+" without errors", l.Errors == 0 && l.MissedEvents == 0 && l.Ended == "",
				"%d errors, %d events missed", l.Errors, l.MissedEvents)
		}
	}
	return all
}

func isByre(target string) bool { return target == onSQLite || target == onPostgres }

func (r *results) soakedOn(target string) *soaked {
	i := slices.IndexFunc(r.Cluster, func(s *soaked) bool { return s.Target == target })
	if i < 0 {
		return nil
	}
	return r.Cluster[i]
}

// cpu is the processor time of server and store, in seconds a second.
func (s *soaked) cpu() float64 {
	if len(s.Samples) < 2 {
		return math.NaN()
	}
	first, last := s.Samples[0], s.Samples[len(s.Samples)-1]
	return (last.cpu() - first.cpu()) / (last.At - first.At)
}

// memory is the mean of the second half, of server and store, in bytes.
func (s *soaked) memory() float64 {
	_, mean := trend(s.Samples, sample.memory)
	return mean
}

// trend fits a line by least squares to the second half of the samples. It returns by how
// much the line rises in that time, and the mean.
func trend(samples []sample, value func(sample) float64) (rise, mean float64) {
	if len(samples) == 0 {
		return math.NaN(), math.NaN()
	}
	end := samples[len(samples)-1].At
	half := slices.DeleteFunc(slices.Clone(samples), func(s sample) bool { return s.At < end/2 })
	var meanAt float64
	for _, s := range half {
		meanAt += s.At / float64(len(half))
		mean += value(s) / float64(len(half))
	}
	var covariance, variance float64
	for _, s := range half {
		covariance += (s.At - meanAt) * (value(s) - mean)
		variance += (s.At - meanAt) * (s.At - meanAt)
	}
	if variance == 0 {
		return 0, mean
	}
	return covariance / variance * (end - half[0].At), mean
}
