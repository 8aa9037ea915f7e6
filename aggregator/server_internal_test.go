package aggregator

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/kube-aggregator/pkg/apiserver"
)

// TestRootOf_IsTheGroupVersionsPath: a route covers the path of its group version and all
// paths below it, and no other.
func TestRootOf_IsTheGroupVersionsPath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/apis/g/v":         "/apis/g/v",
		"/apis/g/v/":        "/apis/g/v",
		"/apis/g/v/x/y":     "/apis/g/v",
		"/apis/g":           "/apis/g",
		"/apis/g/":          "/apis/g/",
		"/apis":             "/apis",
		"/api":              "/api",
		"/api/v1/pods":      "/api",
		"/apix/v1":          "/apix/v1",
		"/apis/g/v1beta1/x": "/apis/g/v1beta1",
		"":                  "",
		"/":                 "/",
	} {
		if got := rootOf(path); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}

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
