package documents

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// documentsDir names, for the child of TestMerge_TakesLittleMemory, the folder with the documents.
const documentsDir = "BYRE_TEST_OPENAPI_DOCUMENTS"

// TestMerge_TakesLittleMemory: a process that merges documents of 12 MB and encodes the result as JSON
// and as protobuf grows by less than 60 MB. A child process does it, which has not yet used memory.
func TestMerge_TakesLittleMemory(t *testing.T) {
	if dir := os.Getenv(documentsDir); dir != "" {
		mergeIn(t, dir)
		return
	}
	t.Parallel()
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	dir := t.TempDir()
	for i, text := range append([][]byte{release(t)}, definitions()...) {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%03d", i)), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMerge_TakesLittleMemory$", "-test.v")
	child.Env = append(os.Environ(), documentsDir+"="+dir)
	out, err := child.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}

// mergeIn merges the documents in a folder, which it reads one at a time, as those of a server's
// definitions come one at a time.
func mergeIn(t *testing.T, dir string) {
	before := peak(t)
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	whole, _, err := merge(context.Background(),
		map[string]Source{"a": {V2: func(_ context.Context, add func([]byte) error) error {
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				if err := add(text); err != nil {
					return err
				}
			}
			return nil
		}}})
	if err != nil {
		t.Fatal(err)
	}
	_, compressed, err := whole.encode()
	if err != nil {
		t.Fatal(err)
	}
	asJSON := peak(t)
	text, err := Decompress(compressed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ToProtobufV2(text); err != nil {
		t.Fatal(err)
	}
	asProtobuf := peak(t)
	t.Logf("%d bytes of text: %d kB before, %d with JSON, %d with protobuf", len(text), before, asJSON, asProtobuf)
	if asProtobuf-before > 60<<10 {
		t.Errorf("the process grows by %d kB", asProtobuf-before)
	}
}

// peak returns the most memory that the process has used, in kB.
func peak(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		t.Skip("the system does not tell the peak of a process's memory")
	}
	kB, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kB
}
