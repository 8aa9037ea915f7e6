package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"byre/sqlstore/postgres/pgtest"
)

// A server whose pki/ was lost reports it, and can continue with new keys.
func TestTrust_LostKeysAreReported(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	startServer(t, dir).stop(t)
	if err := os.RemoveAll(filepath.Join(dir, "pki")); err != nil {
		t.Fatal(err)
	}
	expectRefusedKeys(t, dir)
	startServer(t, dir, "--accept-new-keys").stop(t)
	startServer(t, dir)
}

// A replica with other keys does not join.
func TestTrust_ReplicaWithOtherKeysIsRefused(t *testing.T) {
	t.Parallel()
	endpoint := "--endpoint=" + pgtest.DSN(t)
	startServer(t, t.TempDir(), endpoint)
	expectRefusedKeys(t, t.TempDir(), endpoint)
}

func expectRefusedKeys(t *testing.T, dir string, args ...string) {
	t.Helper()
	args = append([]string{"serve", "--data-dir", dir, "--bind-address=127.0.0.1", "--secure-port=0"}, args...)
	p := command(t, dir, args...)
	status := p.wait(t)
	lines := strings.Split(strings.TrimSpace(p.log.String()), "\n")
	said := lines[len(lines)-1]
	if status != 1 || !strings.HasPrefix(said, "byre: the CA has the key sha256:") || !strings.Contains(said, filepath.Join(dir, "pki")) || !strings.Contains(said, "--accept-new-keys") {
		t.Errorf("status %d, %s", status, said)
	}
}
