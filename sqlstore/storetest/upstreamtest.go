package storetest

import (
	"os/exec"
	"strings"
	"testing"
)

// ModuleDir returns the directory of a module's sources, at the version that go.mod requires.
func ModuleDir(t testing.TB, module string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatalf("find the module %s: %v", module, err)
	}
	return strings.TrimSpace(string(out))
}
