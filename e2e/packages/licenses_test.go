package packages

import (
	"debug/buildinfo"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"byre/e2e/programs"
)

// licenses are the files that accompany each copy of the program.
var licenses = []string{"LICENSE", "NOTICE", "THIRD-PARTY-LICENSES"}

// checkLicenses checks the texts that accompany a program: byre's own, and one for Go and for each
// module that the program says it is linked from.
func checkLicenses(t *testing.T, texts map[string]string, info *buildinfo.BuildInfo) {
	t.Helper()
	for name, source := range map[string]string{"LICENSE": "LICENSE", "NOTICE": "packaging/NOTICE"} {
		if diff := cmp.Diff(readFile(t, filepath.Join(repository, source)), texts[name]); diff != "" {
			t.Errorf("%s differs from this repository's:\n%s", name, diff)
		}
	}
	listed, linked := map[string]string{}, map[string]string{"Go": info.GoVersion}
	for _, m := range regexp.MustCompile(
		`(?m)^(\S+) (\S+): [^ ]*(?i:licen[cs]e|copying|copyright)[^ ]*$`).FindAllStringSubmatch(texts["THIRD-PARTY-LICENSES"],
		-1) {
		listed[m[1]] = m[2]
	}
	for _, module := range info.Deps {
		linked[module.Path] = module.Version
	}
	if diff := cmp.Diff(linked, listed); diff != "" {
		t.Errorf("the modules that the program is linked from (-) and those of THIRD-PARTY-LICENSES (+):\n%s", diff)
	}
	// A package's own licence, a NOTICE, and a text that several modules have.
	for _, want := range []string{
		" internal/snapref/LICENSE\n", "github.com/minio/minio-go/v7 v7", "LICENSE-SQLITE\n",
		"                                 Apache License\n", "Copyright 2009 The Go Authors.\n",
	} {
		if !strings.Contains(texts["THIRD-PARTY-LICENSES"], want) {
			t.Errorf("THIRD-PARTY-LICENSES has no %q", want)
		}
	}
}

// TestLicenses_AreOfThisProgram collects those of the program that the other tests start.
func TestLicenses_AreOfThisProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), filepath.Join(repository, "packaging", "licenses.sh"),
		dir).CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%v\n%s", err, out)
	}
	info, err := buildinfo.ReadFile(programs.Byre.Path())
	if err != nil {
		t.Fatal(err)
	}
	checkLicenses(t, readLicenses(t, dir), info)
}

// readLicenses returns the texts in a directory.
func readLicenses(t *testing.T, dir string) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, name := range licenses {
		texts[name] = readFile(t, filepath.Join(dir, name))
	}
	return texts
}
