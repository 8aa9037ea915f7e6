package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"byre/e2e/programs"
	"byre/e2e/servers"
)

func TestMain(m *testing.M) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	need := []programs.Program{programs.Kubectl, programs.APIServer, programs.Etcd, programs.Kwok, programs.Wardle}
	if os.Getenv("E2E_STOCK") == "" {
		need = append(need, programs.Byre)
	}
	if err := programs.Build(ctx, need...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// patience bounds waits for what is sure to happen. It only ends a test that would
// fail anyway, and a loaded machine is slow.
const patience = 5 * time.Minute

// waitFor calls try until it returns nil.
func waitFor(t *testing.T, what string, try func() error) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(patience)
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("%s: not within %v: %v", what, patience, err)
		}
	}
}

// startByre starts byre for one test. It must end with exit status 0.
func startByre(t *testing.T, db database, args ...string) *servers.Server {
	t.Helper()
	return startByreIn(t, filepath.Join(t.TempDir(), "data"), db, args...)
}

// startByreIn is startByre with a data directory that may have been used before.
func startByreIn(t *testing.T, dir string, db database, args ...string) *servers.Server {
	t.Helper()
	s, err := servers.Byre{Dir: dir, Endpoint: db.endpoint, Args: args}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("byre ended with: %v", err)
		}
		if t.Failed() {
			t.Logf("byre's log ends with:\n%s", s.LogTail())
		}
	})
	return s
}
