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
	for pkg, want := range map[string]int{"runtime": 2, "k8s.io/client-go/kubernetes/scheme": 1} {
		if got := strings.Count("\n"+string(out), "\ninit "+pkg+" @"); got != want {
			t.Errorf("package %s was initialized %d times, want %d", pkg, got, want)
		}
	}
}
