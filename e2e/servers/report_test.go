package servers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"byre/e2e/programs"
)

// failedTest is a test that has failed, and records what it logs.
type failedTest struct {
	testing.TB
	logged string
}

func (*failedTest) Failed() bool { return true }

func (t *failedTest) Logf(format string, args ...any) { t.logged += fmt.Sprintf(format, args...) }

func TestReport_FitsAScreen(t *testing.T) {
	p, err := startProcess(t.TempDir(), "counter", "/bin/sh", "-c", "seq 1000; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	failed := &failedTest{TB: t}
	p.Report(failed)
	file := filepath.Join(programs.Root(), "bin", "failed", fmt.Sprintf("%s-counter-%d.log", t.Name(), p.PID()))
	defer os.Remove(file)
	want := "to repeat: cd e2e && go test -vet=off ./servers -run '^TestReport_FitsAScreen$'\n" +
		"counter ended by itself: exit status 3 and printed (all in " + file + "):\n989\n"
	if !strings.HasPrefix(failed.logged, want) || strings.Count(failed.logged, "\n") > 15 {
		t.Errorf("it logs\n%s\nwant\n%s", failed.logged, want)
	}
	if all, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(all), "1\n2\n") {
		t.Errorf("the file has %.20q, %v", all, err)
	}
}
