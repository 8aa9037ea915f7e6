package storage

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/compatibility"
)

// Program names, in a record's Encoding, what a decode depends on in this process besides the
// record: the release of Kubernetes with its patch level, the emulated version if it is
// another, and a hash of the feature gates that are not as the emulated version has them by
// default. A record that was stored otherwise is decoded and defaulted when it is read, as a
// stock server does with every record.
//
// The feature gates of the process must not change after the call.
func Program(effective compatibility.EffectiveVersion) string {
	name := KubernetesVersion(effective)
	if emulated := effective.EmulationVersion(); !effective.BinaryVersion().WithPatch(0).EqualTo(emulated) {
		name += "~" + emulated.String()
	}
	var changed []byte
	gates := utilfeature.DefaultMutableFeatureGate
	all := gates.GetAll()
	for _, gate := range slices.Sorted(maps.Keys(all)) {
		if enabled := gates.Enabled(gate); enabled != all[gate].Default {
			changed = fmt.Appendf(changed, "%s=%t,", gate, enabled)
		}
	}
	if len(changed) > 0 {
		hash := sha256.Sum256(changed)
		name += fmt.Sprintf("+%x", hash[:8])
	}
	return name
}

// KubernetesVersion is the release of Kubernetes that the program was built with, such as
// v1.37.2. It comes from the build information that the Go toolchain records in every binary.
func KubernetesVersion(effective compatibility.EffectiveVersion) string {
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range build.Deps {
			if dep.Path == "k8s.io/kubernetes" {
				return dep.Version
			}
		}
	}
	return "v" + effective.BinaryVersion().String()
}
