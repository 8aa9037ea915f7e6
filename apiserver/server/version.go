package server

import (
	"regexp"
	"runtime/debug"
	"strings"

	"k8s.io/apimachinery/pkg/version"
	basecompatibility "k8s.io/component-base/compatibility"

	"byre/apiserver/process/kubeversion"
	"byre/apiserver/storage"
)

// Version is the answer of /version: the Kubernetes release whose API the program
// serves, and the commit that it was built from. Both come from the build information
// that the Go toolchain records in every binary, so they are also right after a plain
// `go build` or `go install`.
func Version(effective basecompatibility.EffectiveVersion) version.Info {
	info := kubeversion.Get()
	info.GitVersion = storage.KubernetesVersion(effective)
	info.Major, info.Minor = kubeversion.MajorMinor(info.GitVersion)
	// Semantic versions that differ only in build metadata compare as equal.
	info.GitVersion += "+byre"
	if v := effective.EmulationVersion(); v != nil {
		info.EmulationMajor, info.EmulationMinor = kubeversion.MajorMinor(v.String())
	}
	if v := effective.MinCompatibilityVersion(); v != nil {
		info.MinCompatibilityMajor, info.MinCompatibilityMinor = kubeversion.MajorMinor(v.String())
	}
	return info
}

// nextRelease is the number that the next release gets. A build that is not of a tag is a
// development version of it.
const nextRelease = "0.1.0"

// ProgramVersion is the version of byre itself: that of the tag where it was built at one or
// installed by version, otherwise 0.1.0-dev+68c9f14b7d1e, with the commit where the go command
// recorded it. A build of modified sources ends with ".dirty".
func ProgramVersion() string {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		build = &debug.BuildInfo{}
	}
	return programVersion(build)
}

// pseudoVersion matches the versions that the go command makes up for commits without a tag
// (https://go.dev/ref/mod#pseudo-versions), and finds the commit in them.
var pseudoVersion = regexp.MustCompile(`^v[0-9]+\.(?:0\.0-|[0-9]+\.[0-9]+-(?:[^+]*\.)?0\.)[0-9]{14}-([0-9A-Za-z]+)`)

func programVersion(build *debug.BuildInfo) string {
	// The version of a checkout that go.mod names by a directory is empty.
	module := build.Main
	if module.Replace != nil {
		module = *module.Replace
	}
	commit, modified := "", strings.HasSuffix(module.Version, "+dirty")
	pseudo := pseudoVersion.FindStringSubmatch(module.Version)
	switch {
	case pseudo != nil:
		commit = pseudo[1]
	case strings.HasPrefix(module.Version, "v") && !modified:
		return strings.TrimPrefix(module.Version, "v")
	default:
		commit = revision(build)
	}
	text := nextRelease + "-dev"
	if commit != "" {
		text += "+" + commit
		if modified {
			text += ".dirty"
		}
	}
	return text
}

// revision returns the commit that the go command has recorded, as short as in pseudo-versions.
func revision(build *debug.BuildInfo) string {
	for _, setting := range build.Settings {
		if setting.Key == "vcs.revision" {
			return setting.Value[:min(12, len(setting.Value))]
		}
	}
	return ""
}
