package kubeversion_test

import (
	"strings"
	"testing"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"byre/apiserver/process/kubeversion"
)

// The registry of all metrics, which is made before any function of the program runs, has the release.
func TestRegistry_KnowsTheRelease(t *testing.T) {
	t.Parallel()
	if info := kubeversion.Get(); !strings.HasPrefix(info.GitVersion, "v1.") || info.Major != "1" || info.Minor == "" {
		t.Fatalf("the release is %+v", info)
	}
	// A stable metric is served for three releases after that of its deprecation, and says so.
	deprecated := metrics.NewGauge(&metrics.GaugeOpts{Name: "kubeversion_test_deprecated", Help: "About it.",
		DeprecatedVersion: "1." + kubeversion.Get().Minor + ".0", StabilityLevel: metrics.STABLE})
	legacyregistry.MustRegister(deprecated)
	kubeversion.Register(legacyregistry.Register)
	kubeversion.Register(legacyregistry.Register) // as a second server of the process does
	found, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, family := range found {
		texts[family.GetName()] = family.String()
	}
	if text := texts["kubeversion_test_deprecated"]; !strings.Contains(text, "(Deprecated since") {
		t.Errorf("the registry does not know that a metric is deprecated: %q", text)
	}
	if text := texts["kubernetes_build_info"]; !strings.Contains(text, kubeversion.Get().GitVersion) {
		t.Errorf("kubernetes_build_info is %q", text)
	}
}
