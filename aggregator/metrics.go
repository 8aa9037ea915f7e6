package aggregator

import (
	"errors"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics"
	availability "k8s.io/kube-aggregator/pkg/controllers/status/metrics"
)

// Registry registers the package's metrics. It is the part of component-base's registries
// that this package calls.
type Registry interface {
	Register(metrics.Registerable) error
	CustomRegister(metrics.StableCollector) error
}

// aggregatorMetrics are upstream's metrics under upstream's names, and a counter of
// proxied requests.
type aggregatorMetrics struct {
	availability *availability.Metrics
	requests     *metrics.CounterVec

	missingSAN, insecureSHA1 *metrics.Counter
}

// newMetrics makes the metrics and registers them with r unless that is nil.
func newMetrics(r Registry) (*aggregatorMetrics, error) {
	m := &aggregatorMetrics{
		availability: availability.New(),
		requests: metrics.NewCounterVec(&metrics.CounterOpts{
			Name: "byre_aggregator_requests_total",
			Help: "Requests proxied to aggregated API servers, by APIService and status code. The code is 0 where the client " +
				"got no answer, or took the connection over (an upgrade).",
			StabilityLevel: metrics.ALPHA,
		}, []string{"name", "code"}),
		missingSAN: x509Counter("x509_missing_san_total",
			"Counts the number of requests to servers missing SAN extension in their serving certificate OR the number of connection "+
				"failures due to the lack of x509 certificate SAN extension missing (either/or, based on the runtime environment)"),
		insecureSHA1: x509Counter("x509_insecure_sha1_total",
			"Counts the number of requests to servers with insecure SHA1 signatures in their serving certificate OR the number of "+
				"connection failures due to the insecure SHA1 signatures (either/or, based on the runtime environment)"),
	}
	if r == nil {
		return m, nil
	}
	for _, counter := range []**metrics.Counter{&m.missingSAN, &m.insecureSHA1} {
		err := r.Register(*counter)
		// Upstream's aggregator registers the counters in init, where a program links it.
		if registered := new(prometheus.AlreadyRegisteredError); errors.As(err, registered) {
			if existing, ok := registered.ExistingCollector.(*metrics.Counter); ok {
				*counter, err = existing, nil
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return m, errors.Join(r.Register(m.requests), m.availability.Register(r.Register, r.CustomRegister))
}

// x509Counter makes one of upstream's counters (k8s.io/kube-aggregator/pkg/apiserver/metrics.go).
func x509Counter(name, help string) *metrics.Counter {
	return metrics.NewCounter(&metrics.CounterOpts{
		Namespace:      "apiserver",
		Subsystem:      "kube_aggregator",
		Name:           name,
		Help:           help,
		StabilityLevel: metrics.ALPHA,
	})
}

func (m *aggregatorMetrics) countRequest(name string, code int) {
	m.requests.WithLabelValues(name, strconv.Itoa(code)).Inc()
}
