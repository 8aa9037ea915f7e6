package servers

import (
	"context"
	_ "embed"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/apiserver/envtest/standin"
	"byre/apiserver/process/pki"
	"byre/e2e/programs"
)

// Wardle is the sample API server of Kubernetes, behind another API server as
// its wardle.example.com, with an etcd of its own.
type Wardle struct {
	// Server reaches it directly, and not through the aggregating server.
	*Server
	dir  string
	args []string
	etcd *Process
}

// wardleName is the name in Wardle's certificate that the aggregating server verifies.
const wardleName = "api.wardle.svc"

//go:embed wardle.yaml
var wardleManifests string

// StartWardle registers Wardle with a server and starts it in dir at an address
// of this machine, which may not be a loopback address: no endpoint may.
func StartWardle(ctx context.Context, before *Server, dir, address string) (*Wardle, error) {
	files, _, err := pki.Ensure(pki.Config{Dir: filepath.Join(dir, "pki"), Hosts: []string{wardleName, address},
		Now: time.Now()})
	if err != nil {
		return nil, err
	}
	port, err := standin.TakePort()
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(files.CACert)
	if err != nil {
		return nil, err
	}
	if err := apply(ctx, before, dir, strings.NewReplacer(
		"PORT", port, "ADDRESS", address, "CABUNDLE",
		base64.StdEncoding.EncodeToString(ca)).Replace(wardleManifests)); err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := writeAccountKubeconfig(ctx, before, kubeconfig); err != nil {
		return nil, err
	}
	w := &Wardle{dir: dir, Server: &Server{URL: "https://" + net.JoinHostPort(address, port), CAFile: files.CACert}}
	etcd, err := StartEtcd(ctx, dir)
	if err != nil {
		return nil, err
	}
	w.etcd = etcd.Process
	w.args = []string{
		"--etcd-servers", etcd.URL,
		"--bind-address", address, "--secure-port", port,
		"--tls-cert-file", files.ServingCert, "--tls-private-key-file", files.ServingKey,
		"--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig,
	}
	if err := w.Start(ctx); err != nil {
		w.etcd.Kill()
		return nil, err
	}
	return w, nil
}

// Start starts the server again, after it was stopped, where it was.
func (w *Wardle) Start(ctx context.Context) error {
	started := time.Now()
	p, err := startProcess(w.dir, "wardle", programs.Wardle.Path(), w.args...)
	if err != nil {
		return err
	}
	w.Process = p
	if err := w.awaitReady(ctx, started); err != nil {
		w.Kill()
		return err
	}
	return nil
}

// Close kills the server and its etcd.
func (w *Wardle) Close() {
	w.Kill()
	w.etcd.Kill()
}

func apply(ctx context.Context, s *Server, dir, manifests string) error {
	cmd := exec.CommandContext(ctx, programs.Kubectl.Path(), "--kubeconfig", s.Kubeconfig, "--cache-dir",
		filepath.Join(dir, "cache"), "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifests)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl apply: %w\n%s", err, out)
	}
	return nil
}

// writeAccountKubeconfig writes a kubeconfig of Wardle's service account.
func writeAccountKubeconfig(ctx context.Context, s *Server, path string) error {
	client, err := kubernetes.NewForConfig(s.Config(AdminToken))
	if err != nil {
		return err
	}
	token, err := client.CoreV1().ServiceAccounts("wardle").CreateToken(ctx, "apiserver", &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return s.WriteKubeconfig(path, token.Status.Token, "wardle")
}
