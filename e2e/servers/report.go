package servers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"byre/e2e/programs"
)

// Report logs, if the test has failed, the last lines that the program printed, the file in bin/failed that has all of
// them, and the command that repeats the test alone. A test calls it in its cleanup, as the program's own folder is
// removed then.
func (p *Process) Report(t testing.TB) {
	t.Helper()
	if !t.Failed() {
		return
	}
	root, log := programs.Root(), p.Log()
	file := filepath.Join(root, "bin", "failed", fmt.Sprintf("%s-%s-%d.log",
		strings.NewReplacer("/", "_", " ", "_").Replace(t.Name()), p.name, p.PID()))
	dir, err := os.Getwd()
	if err == nil {
		dir, err = filepath.Rel(filepath.Join(root, "e2e"), dir)
	}
	if err := errors.Join(err, os.MkdirAll(filepath.Dir(file), 0o750),
		os.WriteFile(file, []byte(log), 0o600)); err != nil {
		t.Log(err)
	}
	t.Logf("to repeat: cd e2e && go test -vet=off ./%s -run '^%s$'\n%s %s and printed (all in %s):\n%s",
		dir, strings.ReplaceAll(t.Name(), "/", "$/^"), p.name, p.State(), file, lastLines(log))
}

// lastLines returns the last lines of a log, as many as leave place on a screen for what failed.
func lastLines(log string) string {
	const lines, columns = 12, 300
	all := strings.Split(strings.TrimSuffix(log, "\n"), "\n")
	all = all[max(0, len(all)-lines):]
	for i, line := range all {
		all[i] = line[:min(columns, len(line))]
	}
	return strings.Join(all, "\n")
}
