package options

import (
	"github.com/spf13/pflag"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/kubernetes/pkg/features"
)

// EmulationOptions say which APIs are served although a later release than
// --emulated-version introduced them.
type EmulationOptions struct{ ForwardCompatible, RuntimeConfigForwardCompatible bool }

// AddFlags adds the flags.
func (o *EmulationOptions) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.ForwardCompatible, "emulation-forward-compatible", o.ForwardCompatible,
		"Serve later versions of the APIs of --emulated-version too, though they came after it. Only with an --emulated-version below the program's own.")
	fs.BoolVar(&o.RuntimeConfigForwardCompatible, "runtime-config-emulation-forward-compatible", o.RuntimeConfigForwardCompatible,
		"Serve APIs that --runtime-config names though they came after --emulated-version; otherwise they are an error. Only with an --emulated-version below the program's own.")
}

// Validate returns one error for each invalid flag.
func (o *EmulationOptions) Validate() []error {
	var errs invalid
	gate := features.DisableAllocatorDualWrite
	errs.unless(utilfeature.DefaultFeatureGate.Enabled(gate),
		"the feature gate %s must be on: cluster IPs are kept as IPAddresses only", gate)
	effective := compatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
	if !effective.BinaryVersion().WithPatch(0).EqualTo(effective.EmulationVersion()) {
		return errs
	}
	const needs = "--%s needs an --emulated-version below %s"
	errs.unless(!o.ForwardCompatible, needs, "emulation-forward-compatible", effective.EmulationVersion())
	errs.unless(!o.RuntimeConfigForwardCompatible, needs,
		"runtime-config-emulation-forward-compatible", effective.EmulationVersion())
	return errs
}

// Of returns the emulation of the built-in groups for an effective version.
func (o *EmulationOptions) Of(effective basecompatibility.EffectiveVersion) genericapiserver.ResourceExpirationEvaluatorOptions {
	return genericapiserver.ResourceExpirationEvaluatorOptions{
		CurrentVersion:                          effective.EmulationVersion(),
		EmulationForwardCompatible:              o.ForwardCompatible,
		RuntimeConfigEmulationForwardCompatible: o.RuntimeConfigForwardCompatible,
	}
}
