package servers

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"byre/apiserver/envtest/standin"
	"byre/e2e/programs"
)

//go:embed nodes.yaml
var nodes []byte

// KwokAnnotation is the annotation that assigns a node to a kwok.
const KwokAnnotation = "kwok.x-k8s.io/node"

// Kwok says how to start kwok. It simulates the kubelets of the nodes that KwokAnnotation
// assigns to it.
type Kwok struct {
	// Nodes is the value of KwokAnnotation; empty means "fake".
	Nodes string
	// Dir is where it logs.
	Dir string
	// Kubeconfig leads to the API server.
	Kubeconfig string
	// Config is the file that says what its nodes do; empty means nodes.yaml.
	Config string
	// Parallel is how many Leases, and how many statuses of nodes and of Pods, it writes at a time, instead
	// of 4. Real kubelets don't wait for one another: 5,000 need 64.
	Parallel int
	// Lease is how long the Leases of its nodes last, four times as long as between two renewals; 0 means 40
	// seconds, as of a kubelet.
	Lease time.Duration
	// Address is the IP address of its nodes, at which it listens.
	Address string
	// CertFile and KeyFile are the certificate of the kubelets; empty means that they
	// serve without TLS, so that no API server reaches them.
	CertFile, KeyFile string
}

// Start starts kwok and waits until its kubelets answer.
func (k Kwok) Start(ctx context.Context) (*Process, error) {
	if err := os.MkdirAll(k.Dir, 0o700); err != nil {
		return nil, err
	}
	port, err := standin.TakePort()
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort(k.Address, port)
	kept := k.Nodes
	if kept == "" {
		kept = "fake"
	}
	config := k.Config
	if config == "" {
		config = filepath.Join(k.Dir, "nodes.yaml")
		if err := os.WriteFile(config, append(bytes.Clone(nodes), k.parallelism()...), 0o600); err != nil {
			return nil, err
		}
	}
	p, err := startProcess(k.Dir, "kwok-"+kept, programs.Kwok.Path(),
		"--kubeconfig", k.Kubeconfig,
		"--config", config,
		"--manage-all-nodes=false", "--manage-nodes-with-annotation-selector", KwokAnnotation+"="+kept,
		// Without it kwok renews no Leases.
		"--node-lease-duration-seconds", fmt.Sprint(cmp.Or(k.Lease, 40*time.Second).Seconds()),
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

// parallelism is the part of the configuration that says Parallel. kwok uses no defaults beside it.
func (k Kwok) parallelism() string {
	if k.Parallel == 0 {
		return ""
	}
	return fmt.Sprintf(`---
apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options: {cidr: 10.0.0.0/24, nodeLeaseParallelism: %[1]d, nodePlayStageParallelism: %[1]d, podPlayStageParallelism: %[1]d}
`, k.Parallel)
}
