package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"byre/e2e/programs"
)

// TestProgram_LeavesOutMethodsThatNobodyCalls: the linker keeps all exported methods of all types if one
// function of the program may call a method whose name is only known at run time. That costs 26 MB of program and
// 17 MB of memory. docs/decisions/0031-dead-code.md says how to find the function.
func TestProgram_LeavesOutMethodsThatNobodyCalls(t *testing.T) {
	t.Parallel()
	symbols, err := exec.CommandContext(t.Context(), "go", "tool", "nm", programs.Byre.Path()).Output()
	if err != nil {
		t.Fatal(err)
	}
	for symbol, want := range map[string]bool{
		"github.com/godbus/dbus/v5.(*Conn).ExportAll": false,
		"net/http.(*Server).ServeTLS":                 true,
	} {
		if got := strings.Contains(string(symbols), " "+symbol+"\n"); got != want {
			t.Errorf("the program has %s: %t, want %t", symbol, got, want)
		}
	}
}
