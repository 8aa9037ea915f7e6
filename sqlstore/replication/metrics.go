package replication

import "github.com/prometheus/client_golang/prometheus"

var (
	lagDesc = prometheus.NewDesc("byre_replication_lag_seconds",
		"Age of the oldest commit that a destination of --replicate-to does not have; 0 if it has all.", []string{"destination"}, nil)
	successDesc = prometheus.NewDesc("byre_replication_last_success_timestamp_seconds",
		"When a destination of --replicate-to last had all commits; 0 if not since the start.", []string{"destination"}, nil)
	failuresDesc = prometheus.NewDesc("byre_replication_failures_total",
		"Failed attempts to copy commits to a destination of --replicate-to.", []string{"destination"}, nil)
)

// Describe implements prometheus.Collector.
func (r *Replicator) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- lagDesc
	descriptions <- successDesc
	descriptions <- failuresDesc
}

// Collect implements prometheus.Collector.
func (r *Replicator) Collect(metrics chan<- prometheus.Metric) {
	for _, s := range r.Status() {
		var success float64
		if !s.LastSuccess.IsZero() {
			success = float64(s.LastSuccess.UnixMilli()) / 1000
		}
		metrics <- prometheus.MustNewConstMetric(lagDesc, prometheus.GaugeValue, s.Lag.Seconds(), s.Destination)
		metrics <- prometheus.MustNewConstMetric(successDesc, prometheus.GaugeValue, success, s.Destination)
		metrics <- prometheus.MustNewConstMetric(failuresDesc, prometheus.CounterValue, float64(s.Failures), s.Destination)
	}
}
