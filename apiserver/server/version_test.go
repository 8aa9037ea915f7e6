package server

import (
	"os"
	"regexp"
	"runtime/debug"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
)

func TestProgramVersion_IsTheTagsOrThatOfADevelopmentBuild(t *testing.T) {
	t.Parallel()
	const commit = "68c9f14b7d1e5a0c3f2e4d6b8a9c0e1f2d3b4a5c"
	development := nextRelease + "-dev"
	for name, test := range map[string]struct {
		version, replaced string
		vcs               bool // the go command recorded the commit
		modified          bool
		want              string
	}{
		"no information": {want: development},
		"without Git":    {version: "(devel)", want: development},
		"no tag": {version: "v0.0.0-20261122110421-68c9f14b7d1e", vcs: true,
			want: development + "+68c9f14b7d1e"},
		"after a tag": {version: "v0.1.1-0.20261122110421-68c9f14b7d1e", vcs: true,
			want: development + "+68c9f14b7d1e"},
		"after a tag of a candidate": {version: "v0.1.0-rc.1.0.20261122110421-68c9f14b7d1e", vcs: true,
			want: development + "+68c9f14b7d1e"},
		"no tag, modified": {version: "v0.0.0-20261122110421-68c9f14b7d1e+dirty", vcs: true, modified: true,
			want: development + "+68c9f14b7d1e.dirty"},
		"old go command, no tag": {version: "(devel)", vcs: true, want: development + "+68c9f14b7d1e"},
		"go install of a branch": {version: "v0.0.0-20261122110421-68c9f14b7d1e",
			want: development + "+68c9f14b7d1e"},
		"a tag":                {version: "v0.1.0", vcs: true, want: "0.1.0"},
		"a tag of a candidate": {version: "v0.1.0-rc.1", vcs: true, want: "0.1.0-rc.1"},
		"a tag, modified": {version: "v0.1.0+dirty", vcs: true, modified: true,
			want: development + "+68c9f14b7d1e.dirty"},
		"go install of a tag":            {version: "v2.3.4", want: "2.3.4"},
		"tool of a module, a checkout":   {version: "v0.0.0", replaced: "(directory)", want: development},
		"tool of a module, a fork's tag": {version: "v0.0.0", replaced: "v0.1.0", want: "0.1.0"},
	} {
		build := &debug.BuildInfo{Main: debug.Module{Path: "byre", Version: test.version}}
		switch test.replaced {
		case "":
		case "(directory)":
			build.Main.Replace = &debug.Module{Path: "../byre"}
		default:
			build.Main.Replace = &debug.Module{Path: "example.com/byre", Version: test.replaced}
		}
		if test.vcs {
			build.Settings = append(build.Settings, debug.BuildSetting{Key: "vcs.revision", Value: commit})
		}
		if test.modified {
			build.Settings = append(build.Settings, debug.BuildSetting{Key: "vcs.modified", Value: "true"})
		}
		if got := programVersion(build); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// The step after a release raises the version in three files: a build of a commit after 0.1.0 must
// not say 0.1.0-dev, which is older.
func TestNextRelease_IsThatOfTheChangelogAndTheChart(t *testing.T) {
	t.Parallel()
	chart, err := os.ReadFile("../../packaging/helm/byre/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if m := regexp.MustCompile(`(?m)^appVersion: "(.*)"$`).FindSubmatch(chart); m == nil || string(m[1]) != nextRelease {
		t.Errorf("nextRelease is %s, the chart is of %q", nextRelease, m)
	}
	changelog, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	newest := regexp.MustCompile(`(?m)^## \[([0-9].*?)\]`).FindSubmatch(changelog)
	if newest != nil && version.MustParseSemantic(string(newest[1])).GreaterThan(version.MustParseSemantic(nextRelease)) {
		t.Errorf("nextRelease is %s, the newest release in the changelog %s", nextRelease, newest[1])
	}
}
