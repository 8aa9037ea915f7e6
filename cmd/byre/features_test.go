package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
)

// The feature gates that docs/operations says to change nothing exist, and nothing here reads them.
func TestFeatureGates_ThatChangeNothing(t *testing.T) {
	t.Parallel()
	_, section, _ := strings.Cut(packaged(t, "docs/operations/one-host.md"), "\n### Feature gates\n")
	section, _, _ = strings.Cut(section, "\n## ")
	gates := regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(section, -1)
	if len(gates) == 0 {
		t.Fatal("no gates")
	}
	known := utilfeature.DefaultFeatureGate.DeepCopy().GetAll()
	for _, gate := range gates {
		if _, isKnown := known[featuregate.Feature(gate[1])]; !isKnown {
			t.Errorf("there is no gate %s", gate[1])
		}
	}
	root := filepath.Join("..", "..")
	for _, dir := range []string{"aggregator", "apiserver", "cmd", "crd"} {
		if err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, gate := range gates {
				if strings.Contains(string(text), "features."+gate[1]) {
					t.Errorf("%s reads %s", path, gate[1])
				}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}
