package apiserver

import (
	"runtime"
	"runtime/debug"
	"strings"

	"k8s.io/apimachinery/pkg/version"
	basecompatibility "k8s.io/component-base/compatibility"

	"byre/apiserver/objectstore"
)

// Version is the answer of /version: the Kubernetes release whose API the program
// serves, and the commit that it was built from. Both come from the build information
// that the Go toolchain records in every binary, so they are also right after a plain
// `go build` or `go install`.
func Version(effective basecompatibility.EffectiveVersion) version.Info {
	info := version.Info{
		GitVersion:   objectstore.KubernetesVersion(effective),
		GitTreeState: "clean",
		GoVersion:    runtime.Version(),
		Compiler:     runtime.Compiler,
		Platform:     runtime.GOOS + "/" + runtime.GOARCH,
	}
	if build, ok := debug.ReadBuildInfo(); ok {
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
	}
	info.Major, info.Minor = majorMinor(info.GitVersion)
	// Semantic versions that differ only in build metadata compare as equal.
	info.GitVersion += "+byre"
	if v := effective.EmulationVersion(); v != nil {
		info.EmulationMajor, info.EmulationMinor = majorMinor(v.String())
	}
	if v := effective.MinCompatibilityVersion(); v != nil {
		info.MinCompatibilityMajor, info.MinCompatibilityMinor = majorMinor(v.String())
	}
	return info
}

// ProgramVersion is the version of byre itself: the version of the module where it was
// installed by version, otherwise the commit.
func ProgramVersion() string {
	build, ok := debug.ReadBuildInfo()
	if !ok || build.Main.Version == "" {
		return "(devel)"
	}
	return build.Main.Version
}

func majorMinor(v string) (major, minor string) {
	parts := strings.SplitN(strings.TrimPrefix(v, "v"), ".", 3)
	if len(parts) < 2 {
		return "", ""
	}
	return parts[0], parts[1]
}
