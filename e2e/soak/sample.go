package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/kubernetes"
)

// sample is what a server takes at one time.
type sample struct {
	// At is the time since the measurement began, in seconds.
	At float64 `json:"at"`
	// ServerCPU and StoreCPU are processor time since the process started, in seconds.
	ServerCPU float64 `json:"serverCPU"`
	StoreCPU  float64 `json:"storeCPU"`
	// ServerMemory, StoreMemory and DatabaseSize are in bytes.
	ServerMemory int64 `json:"serverMemory"`
	StoreMemory  int64 `json:"storeMemory"`
	DatabaseSize int64 `json:"databaseSize"`
	Goroutines   int   `json:"goroutines"`
}

func (s sample) cpu() float64    { return s.ServerCPU + s.StoreCPU }
func (s sample) memory() float64 { return float64(s.ServerMemory + s.StoreMemory) }

// sampler takes samples of a target.
type sampler struct {
	target    *target
	clientset kubernetes.Interface
	begun     time.Time
	samples   []sample
	// scraped is when the metrics were read last; goroutines is what they said.
	scraped    time.Time
	goroutines int
}

// scrapeInterval is about what Prometheus is commonly set to. Answering /metrics costs a
// server as much as a dozen requests, so that scraping more often would distort the results.
const scrapeInterval = 30 * time.Second

// run takes samples until the context ends.
func (s *sampler) run(ctx context.Context, interval time.Duration) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		request, cancel := finishing(ctx)
		err := s.take(request)
		cancel()
		if err != nil {
			return err
		}
	}
}

func (s *sampler) take(ctx context.Context) error {
	server, store, err := s.target.used()
	if err != nil {
		return err
	}
	size, err := s.target.size(ctx)
	if err != nil {
		return err
	}
	if time.Since(s.scraped) >= scrapeInterval {
		m, err := scrape(ctx, s.clientset)
		if err != nil {
			return err
		}
		s.scraped, s.goroutines = time.Now(), int(m.gauge("go_goroutines"))
	}
	s.samples = append(s.samples, sample{
		At:        time.Since(s.begun).Seconds(),
		ServerCPU: server.CPU.Seconds(), StoreCPU: store.CPU.Seconds(),
		ServerMemory: server.Memory, StoreMemory: store.Memory, DatabaseSize: size,
		Goroutines: s.goroutines,
	})
	return nil
}

// metrics are those of some servers at one time, by name.
type metrics map[string]*dto.MetricFamily

func scrape(ctx context.Context, clientsets ...kubernetes.Interface) (metrics, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	all := metrics{}
	for _, clientset := range clientsets {
		text, err := clientset.Discovery().RESTClient().Get().AbsPath("/metrics").SetHeader("Accept",
			"text/plain").SetHeader("Accept-Encoding", "identity").DoRaw(ctx)
		if err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
		if err != nil {
			return nil, err
		}
		for name, family := range families {
			if all[name] == nil {
				all[name] = family
			} else {
				all[name].Metric = append(all[name].Metric, family.Metric...)
			}
		}
	}
	return all, nil
}

// gauge is the value of a metric without labels; NaN where there is none.
func (m metrics) gauge(name string) float64 {
	family := m[name]
	if family == nil || len(family.Metric) == 0 {
		return math.NaN()
	}
	return family.Metric[0].GetGauge().GetValue()
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.Label {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

const (
	requestsMetric  = "apiserver_request_total"
	durationsMetric = "apiserver_request_sli_duration_seconds"
)

// requests counts the requests by verb.
func (m metrics) requests() map[string]float64 {
	n := map[string]float64{}
	for _, metric := range m[requestsMetric].GetMetric() {
		n[label(metric, "verb")] += metric.GetCounter().GetValue()
	}
	return n
}

// failures counts the requests that the server failed, which are answers with 5xx, by what
// they were.
func (m metrics) failures() map[string]float64 {
	n := map[string]float64{}
	for _, metric := range m[requestsMetric].GetMetric() {
		if code := label(metric, "code"); len(code) == 3 && code[0] == '5' {
			what := []string{code, label(metric, "verb"), label(metric, "resource")}
			if subresource := label(metric, "subresource"); subresource != "" {
				what = append(what, subresource)
			}
			n[strings.Join(what, " ")] += metric.GetCounter().GetValue()
		}
	}
	return n
}

// added returns by how much the counters have grown since an earlier state.
func added(after, before map[string]float64) map[string]float64 {
	n := map[string]float64{}
	for name := range after {
		if d := after[name] - before[name]; d > 0 {
			n[name] = d
		}
	}
	return n
}

// operation is what the objectives of latency are about.
type operation struct{ verb, scope string }

// histogram is the cumulative number of requests by the upper bound of their duration, in
// seconds.
type histogram map[float64]float64

func (m metrics) durations() map[operation]histogram {
	all := map[operation]histogram{}
	for _, metric := range m[durationsMetric].GetMetric() {
		o := operation{label(metric, "verb"), label(metric, "scope")}
		if all[o] == nil {
			all[o] = histogram{}
		}
		for _, b := range metric.GetHistogram().GetBucket() {
			all[o][b.GetUpperBound()] += float64(b.GetCumulativeCount())
		}
	}
	return all
}

// since returns the histogram of what was observed after an earlier state.
func (h histogram) since(earlier histogram) histogram {
	later := histogram{}
	for bound, n := range h {
		later[bound] = n - earlier[bound]
	}
	return later
}

func (h histogram) count() float64 { return h[math.Inf(1)] }

// quantile interpolates in the bucket, as histogram_quantile of Prometheus does. It is
// NaN where there is nothing.
func (h histogram) quantile(q float64) float64 {
	var bounds []float64
	for bound := range h {
		bounds = append(bounds, bound)
	}
	slices.Sort(bounds)
	rank := q * h.count()
	if rank == 0 || math.IsNaN(rank) {
		return math.NaN()
	}
	var lower, below float64
	for _, bound := range bounds {
		if h[bound] >= rank {
			if math.IsInf(bound, 1) {
				return lower
			}
			return lower + (bound-lower)*(rank-below)/(h[bound]-below)
		}
		lower, below = bound, h[bound]
	}
	return lower
}

// objective is Kubernetes' for the p99 of an operation, in seconds; 0 where there is none.
// See https://git.k8s.io/community/sig-scalability/slos/slos.md.
func (o operation) objective() float64 {
	switch o.verb {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, "APPLY":
		return 1
	case http.MethodGet, "LIST":
		switch o.scope {
		case "resource":
			return 1
		case "namespace":
			return 5
		case "cluster":
			return 30
		}
	}
	return 0
}

var errNoMetrics = errors.New("the server has no metric " + durationsMetric)
