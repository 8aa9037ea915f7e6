package servers

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"byre/apiserver/envtest/standin"
	"byre/e2e/programs"
)

// Byre says how to start byre.
type Byre struct {
	// Dir is its data directory. A second start in the same one goes on where
	// the first ended.
	Dir string
	// Endpoint is a DSN; empty means SQLite in Dir.
	Endpoint string
	// Port is where it serves; empty takes any that is free.
	Port string
	// Program is its path; empty means programs.Byre.
	Program string
	// Env are further variables of its environment, as "NAME=value".
	Env []string
	// Args are further flags.
	Args []string
	// IsStandby says that it may have to wait for a lease: Start does not wait until it is ready.
	IsStandby bool
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
	port := b.Port
	if port == "" {
		if port, err = standin.TakePort(); err != nil {
			return nil, err
		}
	}
	program := b.Program
	if program == "" {
		program = programs.Byre.Path()
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
	process, err := startProcessWith(b.Env, b.Dir, "byre", program, append(args, b.Args...)...)
	if err != nil {
		return nil, err
	}
	s := &Server{
		Process:    process,
		URL:        "https://127.0.0.1:" + port,
		CAFile:     filepath.Join(b.Dir, "pki", "ca.crt"),
		Kubeconfig: filepath.Join(b.Dir, "admin.kubeconfig"),

		SigningKeyFile: filepath.Join(b.Dir, "pki", "sa.key"),
	}
	if b.IsStandby {
		return s, nil
	}
	if err := s.awaitReady(ctx, started); err != nil {
		s.Kill()
		return nil, err
	}
	return s, nil
}
