package servers

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"byre/e2e/programs"
)

// Byre says how to start byre.
type Byre struct {
	// Dir is its data directory. A second start in the same one goes on where
	// the first ended.
	Dir string
	// Endpoint is a DSN; empty means SQLite in Dir.
	Endpoint string
	// Args are further flags.
	Args []string
}

// Start starts byre and waits until it is ready.
func (b Byre) Start(ctx context.Context) (*Server, error) {
	if err := os.MkdirAll(b.Dir, 0o700); err != nil {
		return nil, err
	}
	tokens, err := writeTokens(b.Dir)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	args := []string{"serve",
		"--data-dir", b.Dir,
		"--bind-address", "127.0.0.1",
		"--secure-port", port,
		"--token-auth-file", tokens,
		// Both servers of a comparison hand out the same addresses.
		"--service-cluster-ip-range", clusterIPRange,
	}
	if b.Endpoint != "" {
		args = append(args, "--endpoint", b.Endpoint)
	}
	started := time.Now()
	process, err := startProcess(b.Dir, "byre", programs.Byre.Path(), append(args, b.Args...)...)
	if err != nil {
		return nil, err
	}
	s := &Server{
		Process:    process,
		URL:        "https://127.0.0.1:" + port,
		CAFile:     filepath.Join(b.Dir, "pki", "ca.crt"),
		Kubeconfig: filepath.Join(b.Dir, "admin.kubeconfig"),
	}
	if err := s.awaitReady(ctx, started); err != nil {
		s.Kill()
		return nil, err
	}
	return s, nil
}
