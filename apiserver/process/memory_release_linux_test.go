package process

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReleaseUnused_FreesProgramPages: a release leaves less of the program file resident.
func TestReleaseUnused_FreesProgramPages(t *testing.T) {
	if os.Getenv("BYRE_TEST_ON_DISK") == "" {
		runOnDisk(t)
		return
	}
	// First make all of the program resident, as if all of it had run.
	if err := adviseProgram(unix.MADV_POPULATE_READ); err != nil {
		t.Skipf("the kernel cannot populate mappings: %v", err)
	}
	before := residentFilePages(t)
	if err := releaseUnused(); err != nil {
		t.Fatal(err)
	}
	after := residentFilePages(t)
	if after > before*4/5 { // the runtime itself reads some of it again
		t.Errorf("of %d KiB of files that are mapped, %d KiB are still resident", before, after)
	}
}

// runOnDisk runs the test in a copy of the test's program in /var/tmp: only pages of files on a disk can be released,
// and the program itself may be in memory.
func runOnDisk(t *testing.T) {
	t.Helper()
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/var/tmp", "byre-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "test")
	if err := os.WriteFile(file, program, 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), file, "-test.v", "-test.run=^"+t.Name()+"$") //nolint:gosec // the copy
	cmd.Env = append(os.Environ(), "BYRE_TEST_ON_DISK=1")
	switch output, err := cmd.CombinedOutput(); {
	case err != nil:
		t.Fatalf("%v: %s", err, output)
	case bytes.Contains(output, []byte("--- SKIP")):
		t.Skipf("%s", output)
	}
}

// residentFilePages returns how many KiB of this process's mapped files are resident.
func residentFilePages(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "RssFile:"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return kib
		}
	}
	t.Skip("the kernel does not say how much is resident")
	return 0
}
