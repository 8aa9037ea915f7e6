package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"byre/e2e/programs"
	"byre/e2e/servers"
)

func TestMain(m *testing.M) {
	os.Exit(programs.Main(m, programs.Kubectl, programs.APIServer, programs.Etcd, programs.Kwok, programs.Wardle,
		programs.Byre))
}

// startByre starts byre for one test. It must end with exit status 0.
func startByre(t *testing.T, db database, args ...string) *servers.Server {
	t.Helper()
	return startByreIn(t, filepath.Join(t.TempDir(), "data"), db, args...)
}

// startByreIn is startByre with a data directory that may have been used before.
func startByreIn(t *testing.T, dir string, db database, args ...string) *servers.Server {
	t.Helper()
	return start(t, servers.Byre{Dir: dir, Endpoint: db.endpoint, Args: args})
}

// start starts byre; at the end it must stop with exit status 0.
func start(t *testing.T, b servers.Byre) *servers.Server {
	t.Helper()
	s, err := b.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("byre ended with: %v", err)
		}
		s.Report(t)
	})
	return s
}
