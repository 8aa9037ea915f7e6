package process

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReleaseUnused_FreesProgramPages: a release leaves less of the program file resident.
func TestReleaseUnused_FreesProgramPages(t *testing.T) {
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
