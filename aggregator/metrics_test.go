package aggregator

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/kube-aggregator/pkg/apiserver"
)

// upstreamRegistry is the registry in which upstream's aggregator registers its counters in init.
type upstreamRegistry struct{}

func (upstreamRegistry) Register(m metrics.Registerable) error { return legacyregistry.Register(m) }

func (upstreamRegistry) CustomRegister(c metrics.StableCollector) error {
	return legacyregistry.CustomRegister(c)
}

// TestMetrics_CountWhereUpstreamDoes: a program that links upstream's aggregator has its counters in
// the registry already. byre counts in these.
func TestMetrics_CountWhereUpstreamDoes(t *testing.T) {
	t.Parallel()
	m, err := newMetrics(upstreamRegistry{})
	if err != nil {
		t.Fatal(err)
	}
	for _, counter := range []*metrics.Counter{m.missingSAN, m.insecureSHA1} {
		registered := new(prometheus.AlreadyRegisteredError)
		if err := legacyregistry.Register(counter); !errors.As(err, registered) || registered.ExistingCollector != counter {
			t.Errorf("%s is not the counter of the registry: %v", counter.FQName(), err)
		}
	}
}
