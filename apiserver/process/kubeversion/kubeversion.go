// Package kubeversion tells upstream's metrics of which release of Kubernetes the program is. Upstream's build writes
// that into variables by flags of the linker, and byre takes it from the build information that the Go toolchain
// records.
//
// Invariant: metrics.BuildVersion is set before any registry of metrics is made: a registry keeps the version, by
// which it hides deprecated metrics. Go initializes packages in the order of their paths as soon as their imports are
// initialized (https://go.dev/ref/spec#Program_initialization), so that this one, which imports
// component-base/metrics and nothing of byre, comes before k8s.io/component-base/metrics/legacyregistry.
// TestRegistry_KnowsTheRelease fails if it does not.
package kubeversion

import (
	"runtime"
	"runtime/debug"
	"strings"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/metrics"
	componentversion "k8s.io/component-base/version"
)

var _ = setBuildVersion()

func setBuildVersion() struct{} {
	metrics.BuildVersion = Get
	return struct{}{}
}

// Get returns the release of the module k8s.io/kubernetes, and the commit that the program was built from. The build
// information of a test binary does not have that module: its release is the first of the minor version.
func Get() version.Info {
	info := componentversion.Get()
	info.GitCommit, info.BuildDate, info.GitTreeState = "", "", "clean"
	info.Platform = runtime.GOOS + "/" + runtime.GOARCH
	info.GitVersion = "v" + componentversion.DefaultKubeBinaryVersion + ".0"
	info.Major, info.Minor = MajorMinor(info.GitVersion)
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return info
	}
	for _, dep := range build.Deps {
		if dep.Path == "k8s.io/kubernetes" {
			info.GitVersion = dep.Version
			info.Major, info.Minor = MajorMinor(dep.Version)
		}
	}
	for _, setting := range build.Settings {
		switch {
		case setting.Key == "vcs.revision":
			info.GitCommit = setting.Value
		case setting.Key == "vcs.time":
			info.BuildDate = setting.Value
		case setting.Key == "vcs.modified" && setting.Value == "true":
			info.GitTreeState = "dirty"
		}
	}
	return info
}

// MajorMinor splits v1.36.3 into 1 and 36.
func MajorMinor(release string) (major, minor string) {
	parts := strings.Split(strings.TrimPrefix(release, "v"), ".")
	if len(parts) < 2 {
		return "", ""
	}
	return parts[0], parts[1]
}

// buildInfo is upstream's metric of k8s.io/component-base/metrics/prometheus/version, which knows the variables of
// the linker alone.
var buildInfo = metrics.NewGaugeVec(&metrics.GaugeOpts{
	Name:           "kubernetes_build_info",
	Help:           "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
	StabilityLevel: metrics.BETA,
}, []string{"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform"})

// Register registers the metric kubernetes_build_info, unless it is registered.
func Register(registry func(metrics.Registerable) error) {
	_ = registry(buildInfo) // it fails if the metric is registered
	info := Get()
	buildInfo.WithLabelValues(info.Major, info.Minor, info.GitVersion, info.GitCommit, info.GitTreeState, info.BuildDate,
		info.GoVersion, info.Compiler, info.Platform).Set(1)
}
