package servers

import (
	"context"
	"crypto/tls"
	"net/http"
	"os"
	"path/filepath"

	"byre/apiserver/envtest/standin"
	"byre/e2e/programs"
)

// ControllerManager says how to start kube-controller-manager.
type ControllerManager struct {
	// Dir is where it logs and keeps its certificate and kubeconfig.
	Dir string
	// Server is what it works on.
	Server *Server
	// Args are further flags.
	Args []string
}

// Start starts kube-controller-manager as kubeadm does, each controller with a service
// account of its own, and waits until it serves. It need not lead yet.
func (m ControllerManager) Start(ctx context.Context) (*Process, error) {
	return startComponent(ctx, m.Server, m.Dir, programs.ControllerManager, controllerManagerToken, append([]string{
		"--service-account-private-key-file", m.Server.SigningKeyFile,
		"--root-ca-file", m.Server.CAFile,
		"--use-service-account-credentials",
	}, m.Args...))
}

// Scheduler says how to start kube-scheduler.
type Scheduler struct {
	// Dir is where it logs and keeps its certificate and kubeconfig.
	Dir string
	// Server is what it works on.
	Server *Server
	// Args are further flags.
	Args []string
}

// Start starts kube-scheduler and waits until it serves. It need not lead yet.
func (s Scheduler) Start(ctx context.Context) (*Process, error) {
	return startComponent(ctx, s.Server, s.Dir, programs.Scheduler, schedulerToken, s.Args)
}

// startComponent starts a component as the user whose token this is, on a port of its own.
func startComponent(
	ctx context.Context, server *Server, dir string, program programs.Program, token string, args []string,
) (*Process, error) {
	dir = filepath.Join(dir, filepath.Base(program.Path()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := server.WriteKubeconfig(kubeconfig, token, ""); err != nil {
		return nil, err
	}
	port, err := standin.TakePort()
	if err != nil {
		return nil, err
	}
	p, err := startProcess(dir, filepath.Base(program.Path()), program.Path(), append([]string{
		"--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig,
		"--bind-address", "127.0.0.1", "--secure-port", port, "--cert-dir", filepath.Join(dir, "certs"),
	}, args...)...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// The component serves with a self-signed certificate, which no CA verifies.
	client := &http.Client{Transport: freshTransport(&tls.Config{InsecureSkipVerify: true})}
	if err := p.await(ctx, func(ctx context.Context) error {
		return probe(ctx, client, "https://127.0.0.1:"+port+"/healthz")
	}); err != nil {
		p.Kill()
		return nil, err
	}
	return p, nil
}
