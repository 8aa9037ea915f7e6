package main

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestServe_InitializesItsPackagesOnce: byre serve executes itself again for its timer slack before
// packages are initialized that take long. With GODEBUG=inittrace=1 the runtime writes which are.
func TestServe_InitializesItsPackagesOnce(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread() // and never unlocks, because the slack of the thread changes
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 50_000, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "serve", "--help")
	cmd.Env = append(os.Environ(), asProgram+"=1", "GODEBUG=inittrace=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	executions := strings.Split("\n"+string(out), "\ninit runtime @")
	if len(executions) != 3 { // the text before the first, and two executions
		t.Fatalf("%d executions", len(executions)-1)
	}
	first, second := strings.Count(executions[1], "\ninit "), strings.Count(executions[2], "\ninit ")
	if 4*first > second {
		t.Errorf("%d packages were initialized first, %d afterwards:\n%s", first, second, executions[1])
	}
}
