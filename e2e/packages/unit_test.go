package packages

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"byre/e2e/programs"
)

func TestMain(m *testing.M) {
	os.Exit(programs.Main(m, programs.Byre, programs.Kubectl))
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// readUnit returns the values of each key of a unit's file.
func readUnit(t *testing.T, name string) map[string][]string {
	t.Helper()
	unit := map[string][]string{}
	for line := range strings.Lines(readFile(t, name)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			unit[key] = append(unit[key], value)
		}
	}
	return unit
}

// TestUnit_PassesSystemdsChecks: the exposure that systemd calculates, of 0 to 10, is below 2.
func TestUnit_PassesSystemdsChecks(t *testing.T) {
	t.Parallel()
	needs(t, "systemd-analyze")
	text := readFile(t, filepath.Join(repository, "packaging", "systemd", "byre.service"))
	unit := filepath.Join(t.TempDir(), "byre.service")
	// The program is not installed here.
	if err := os.WriteFile(unit, []byte(strings.ReplaceAll(text, "/usr/bin/byre", programs.Byre.Path())),
		0o644); err != nil {
		t.Fatal(err)
	}
	if out := mustRun(t, "systemd-analyze", "verify", "--man=no", unit); strings.Contains(out, "byre.service") {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	mustRun(t, "systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", unit)
}
