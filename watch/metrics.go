package watch

import "github.com/prometheus/client_golang/prometheus"

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
	m := metrics{
		applied: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "byre_watch_changes_total",
			Help: "Changes of the store that the feed has applied.",
		}),
		resets: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "byre_watch_resets_total",
			Help: "Times that all state in memory was read again, by reason: compacted, restored or hole. A hole is a fault of the store.",
		}, []string{"reason"}),
	}
	for _, reason := range []string{resetCompacted, resetHole, resetRestored} {
		m.resets.WithLabelValues(reason) // so that an alert sees the counter at 0 before its first increment
	}
	if r != nil {
		r.MustRegister(m.applied, m.resets,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "byre_watch_revision",
				Help: "Last revision that the feed has applied.",
			}, func() float64 { return float64(s.progress.Revision()) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "byre_watch_resources",
				Help: "Resources whose current state is in memory.",
			}, func() float64 {
				resources, _ := s.size()
				return float64(resources)
			}),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "byre_watch_state_bytes",
				Help: "Bytes that the values of current state take in memory: compressed where nobody has read them for minutes.",
			}, func() float64 {
				_, bytes := s.size()
				return float64(bytes)
			}))
	}
	return m
}
