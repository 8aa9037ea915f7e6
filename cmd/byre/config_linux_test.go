package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// Who can't read the file of the host is told so where a command fails.
func TestConfiguration_ThatTheUserCannotRead(t *testing.T) {
	host := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(host, []byte("data-dir: /host\n"), 0); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		if os.Getuid() == 0 {  // who reads every file
			_ = syscall.Setfsuid(65534)
		}
		root := newRootCommand()
		root.PersistentPreRunE = newConfiguration(host).setNamed
		root.SetArgs([]string{"check"})
		failed <- root.ExecuteContext(t.Context())
	}()
	want := " (and --config: open " + host + ": permission denied: run it as root to use that configuration)"
	if err := <-failed; err == nil || !strings.HasSuffix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v, want it to end with%s", err, want)
	}
}
