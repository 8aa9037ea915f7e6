package storage

import (
	"testing"

	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	basecompatibility "k8s.io/component-base/compatibility"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/features"
)

// The name of the program changes with all that a decode depends on. It does not run beside
// other tests, because the feature gates are the process's.
func TestProgram_CoversWhatADecodeDependsOn(t *testing.T) {
	plain := compatibility.DefaultBuildEffectiveVersion()
	names := map[string]string{Program(plain): "as by default"}
	see := func(what string, effective basecompatibility.EffectiveVersion) {
		t.Helper()
		name := Program(effective)
		if before, ok := names[name]; ok {
			t.Errorf("%s has the name of %s: %s", what, before, name)
		}
		names[name] = what
	}
	see("another patch level", basecompatibility.NewEffectiveVersionFromString("1.37.99", "", ""))
	see("another release", basecompatibility.NewEffectiveVersionFromString("1.35", "", ""))
	emulating := compatibility.DefaultBuildEffectiveVersion()
	emulating.SetEmulationVersion(plain.BinaryVersion().OffsetMinor(-1))
	see("another emulated version", emulating)
	t.Run("gates", func(t *testing.T) {
		gate := features.MaxUnavailableStatefulSet
		was := utilfeature.DefaultFeatureGate.Enabled(gate)
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, gate, !was)
		see("another gate", plain)
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, gate, was)
		if name := Program(plain); names[name] != "as by default" {
			t.Errorf("with the gate as by default it is %s", names[name])
		}
	})
}
