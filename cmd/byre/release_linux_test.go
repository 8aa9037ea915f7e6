package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// idleAfter is when a server's memory is read, counted from its readiness. The release
// comes five seconds after that; then the server reads again the pages that it still uses.
const idleAfter = 20 * time.Second

// withoutRelease takes the place of apiserver/process/memory_release.go in the control run.
const withoutRelease = `package process

func releaseUnused() error { return nil }
`

// BenchmarkRelease defends apiserver/process/memory_release.go. It starts byre on an empty
// database, with and without the release, and reports the resident memory of both when they
// are idle. It builds two programs; one iteration is enough (-benchtime=1x).
func BenchmarkRelease(b *testing.B) {
	dir := b.TempDir()
	release, err := filepath.Abs(filepath.Join("..", "..", "apiserver", "process", "memory_release.go"))
	if err != nil {
		b.Fatal(err)
	}
	replacement, overlay := filepath.Join(dir, "release.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(replacement, []byte(withoutRelease), 0o600); err != nil {
		b.Fatal(err)
	}
	files, err := json.Marshal(map[string]map[string]string{"Replace": {release: replacement}})
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(overlay, files, 0o600); err != nil {
		b.Fatal(err)
	}
	program := buildProgram(b, filepath.Join(dir, "byre"))
	control := buildProgram(b, filepath.Join(dir, "byre-control"), "-overlay", overlay)
	with, without, n := 0, 0, 0
	for b.Loop() {
		with += idleMemory(b, program)
		without += idleMemory(b, control)
		n++
	}
	b.ReportMetric(float64(with)/float64(n<<20), "MB")
	b.ReportMetric(float64(without)/float64(n<<20), "MB-without-release")
}

func buildProgram(b *testing.B, path string, args ...string) string {
	b.Helper()
	args = append(append([]string{"build", "-o", path}, args...), ".")
	if out, err := exec.CommandContext(b.Context(), "go", args...).CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	return path
}

// idleMemory returns the resident memory of an idle server.
func idleMemory(b *testing.B, program string) int {
	b.Helper()
	dir := filepath.Join(b.TempDir(), "data")
	p := start(b, dir, exec.Command(program, serveArgs(dir)...))
	awaitReady(b, p)
	select {
	case <-p.exited:
		b.Fatal("byre exited")
	case <-time.After(idleAfter):
	}
	memory := residentMemory(b, p)
	_ = p.cmd.Process.Kill()
	<-p.exited
	return memory
}
