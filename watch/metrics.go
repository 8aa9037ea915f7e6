package watch

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// The reasons for a reset, in metrics.
const (
	resetCompacted = "compacted"
	resetHole      = "hole"
	resetRestored  = "restored"
)

type metrics struct {
	applied prometheus.Counter
	resets  *prometheus.CounterVec
}

// newMetrics makes the metrics of a feed, and registers them, and the gauges of its state, with r
// unless r is nil.
func newMetrics(r prometheus.Registerer, s *state) metrics {
	f := promauto.With(r)
	gauge := func(name, help string, value func() int64) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	gauge("byre_watch_revision", "Last revision that the feed has applied.", s.progress.Revision)
	gauge("byre_watch_resources", "Resources whose current state is in memory.", func() int64 {
		resources, _ := s.size()
		return int64(resources)
	})
	gauge("byre_watch_state_bytes", "Bytes that the values of current state take in memory: compressed where nobody has read them for minutes.", func() int64 {
		_, bytes := s.size()
		return int64(bytes)
	})
	m := metrics{
		applied: f.NewCounter(prometheus.CounterOpts{
			Name: "byre_watch_changes_total",
			Help: "Changes of the store that the feed has applied.",
		}),
		resets: f.NewCounterVec(prometheus.CounterOpts{
			Name: "byre_watch_resets_total",
			Help: "Times that all state in memory was read again, by reason: compacted, restored or hole. A hole is a fault of the store.",
		}, []string{"reason"}),
	}
	for _, reason := range []string{resetCompacted, resetHole, resetRestored} {
		m.resets.WithLabelValues(reason) // so that an alert sees the counter at 0 before its first increment
	}
	return m
}
