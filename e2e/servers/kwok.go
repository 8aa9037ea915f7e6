package servers

import (
	"context"
	"net"
	"net/http"
	"os"

	"byre/e2e/programs"
)

// Kwok says how to start kwok. It keeps the nodes that are annotated
// kwok.x-k8s.io/node=fake, and is all their kubelets.
type Kwok struct {
	// Dir is where it logs.
	Dir string
	// Kubeconfig leads to the API server.
	Kubeconfig string
	// Config is the file that says what its nodes do.
	Config string
	// Address is the IP address of its nodes, at which it listens.
	Address string
	// CertFile and KeyFile are the certificate of the kubelets.
	CertFile, KeyFile string
}

// Start starts kwok and waits until its kubelets answer.
func (k Kwok) Start(ctx context.Context) (*Process, error) {
	if err := os.MkdirAll(k.Dir, 0o700); err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort(k.Address, port)
	p, err := startProcess(k.Dir, "kwok", programs.Kwok.Path(),
		"--kubeconfig", k.Kubeconfig,
		"--config", k.Config,
		"--manage-all-nodes=false", "--manage-nodes-with-annotation-selector", "kwok.x-k8s.io/node=fake",
		"--node-ip", k.Address, "--node-port", port, "--server-address", address,
		"--tls-cert-file", k.CertFile, "--tls-private-key-file", k.KeyFile)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = p.await(ctx, func(ctx context.Context) error {
		return probe(ctx, &http.Client{Transport: freshTransport(nil)}, "http://"+address+"/healthz")
	})
	if err != nil {
		p.Kill()
		return nil, err
	}
	return p, nil
}
