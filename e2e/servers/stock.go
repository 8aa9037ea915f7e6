package servers

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"byre/apiserver/envtest/standin"
	"byre/apiserver/process/pki"
	"byre/e2e/programs"
)

const clusterIPRange = "10.96.0.0/16"

// Stock says how to start kube-apiserver with an etcd of its own.
type Stock struct {
	// Dir is where both keep their files. etcd goes on with the data in Dir/etcd, if
	// there are any.
	Dir string
	// Etcd is what it keeps its objects in; nil starts an etcd.
	Etcd *Etcd
	// Args are further flags of kube-apiserver.
	Args []string
	// Aggregates adds the flags that it needs for aggregated API servers.
	Aggregates bool
}

// Start starts etcd and kube-apiserver and waits until both are ready. The start
// time is that of kube-apiserver alone.
func (s Stock) Start(ctx context.Context) (*Server, error) {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, err
	}
	etcd := s.Etcd
	if etcd == nil {
		var err error
		if etcd, err = StartEtcd(ctx, s.Dir); err != nil {
			return nil, err
		}
	}
	server, err := s.startAPIServer(ctx, etcd.URL)
	if err != nil {
		if s.Etcd == nil {
			etcd.Kill()
		}
		return nil, err
	}
	if s.Etcd == nil {
		server.Beside = []*Process{etcd.Process}
	}
	return server, nil
}

// Etcd is a running etcd, or what stands in for one.
type Etcd struct {
	*Process
	// URL is where clients find it.
	URL string
}

// StartEtcd starts an etcd that keeps its data in dir/etcd, and goes on with those that
// are there.
func StartEtcd(ctx context.Context, dir string, args ...string) (*Etcd, error) {
	return StartEtcdOf(ctx, programs.Etcd, dir, args...)
}

// StartEtcdOf is StartEtcd of another version of etcd.
func StartEtcdOf(ctx context.Context, program programs.Program, dir string, args ...string) (*Etcd, error) {
	client, err := standin.TakePort()
	if err != nil {
		return nil, err
	}
	peer, err := standin.TakePort()
	if err != nil {
		return nil, err
	}
	clientURL, peerURL := "http://127.0.0.1:"+client, "http://127.0.0.1:"+peer
	p, err := startProcess(dir, "etcd", program.Path(), append([]string{
		"--name", "default",
		"--data-dir", filepath.Join(dir, "etcd"),
		"--listen-client-urls", clientURL, "--advertise-client-urls", clientURL,
		"--listen-peer-urls", peerURL, "--initial-advertise-peer-urls", peerURL,
		"--initial-cluster", "default=" + peerURL,
		"--log-level", "warn",
	}, args...)...)
	if err != nil {
		return nil, err
	}
	return awaitEtcd(ctx, &Etcd{p, clientURL}, clientURL+"/health")
}

// StartKine starts a kine that keeps its data at an endpoint: sqlite://PATH or postgres://...
func StartKine(ctx context.Context, dir, endpoint string) (*Etcd, error) {
	client, err := standin.TakePort()
	if err != nil {
		return nil, err
	}
	metrics, err := standin.TakePort()
	if err != nil {
		return nil, err
	}
	p, err := startProcess(dir, "kine", programs.Kine.Path(),
		"--listen-address", "127.0.0.1:"+client,
		"--endpoint", endpoint,
		"--metrics-bind-address", "127.0.0.1:"+metrics)
	if err != nil {
		return nil, err
	}
	return awaitEtcd(ctx, &Etcd{p, "http://127.0.0.1:" + client}, "http://127.0.0.1:"+metrics+"/metrics")
}

// StartByreEtcd starts a "byre etcd" that keeps its data at an endpoint, or in dir if that is "".
func StartByreEtcd(ctx context.Context, dir, endpoint string, args ...string) (*Etcd, error) {
	client, err := standin.TakePort()
	if err != nil {
		return nil, err
	}
	url := "http://127.0.0.1:" + client
	store := []string{"--data-dir", filepath.Join(dir, "byre")}
	if endpoint != "" {
		store = []string{"--endpoint", endpoint}
	}
	p, err := startProcess(dir, "byre-etcd", programs.Byre.Path(),
		slices.Concat([]string{"etcd", "--listen-client-urls", url}, store, args)...)
	if err != nil {
		return nil, err
	}
	return awaitEtcd(ctx, &Etcd{p, url}, url+"/health")
}

func awaitEtcd(ctx context.Context, etcd *Etcd, health string) (*Etcd, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := etcd.await(ctx, func(ctx context.Context) error {
		return probe(ctx, &http.Client{Transport: freshTransport(nil)}, health)
	})
	if err != nil {
		etcd.Kill()
		return nil, err
	}
	return etcd, nil
}

func (s Stock) startAPIServer(ctx context.Context, etcdURL string) (*Server, error) {
	tokens, err := writeTokens(s.Dir)
	if err != nil {
		return nil, err
	}
	key := filepath.Join(s.Dir, "sa.key")
	if err := writeKey(key); err != nil {
		return nil, err
	}
	port, err := standin.TakePort()
	if err != nil {
		return nil, err
	}
	certs := filepath.Join(s.Dir, "certs")
	args := []string{
		"--etcd-servers", etcdURL,
		"--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--secure-port", port,
		// No endpoint may have a loopback address: kube-apiserver does not start if it is to publish one.
		"--endpoint-reconciler-type", "none",
		"--cert-dir", certs,
		"--token-auth-file", tokens,
		"--service-account-issuer", "https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file", key, "--service-account-signing-key-file", key,
		"--service-cluster-ip-range", clusterIPRange,
	}
	if !slices.Contains(s.Args, "--authorization-config") { // which excludes it
		args = append(args, "--authorization-mode", "Node,RBAC")
	}
	if s.Aggregates {
		more, err := s.frontProxy()
		if err != nil {
			return nil, err
		}
		args = append(args, more...)
	}
	started := time.Now()
	process, err := startProcess(s.Dir, "kube-apiserver", programs.APIServer.Path(), append(args, s.Args...)...)
	if err != nil {
		return nil, err
	}
	server := &Server{
		Process: process,
		URL:     "https://127.0.0.1:" + port,
		// The file has the self-signed certificate and the CA that kube-apiserver made for it.
		CAFile:     filepath.Join(certs, "apiserver.crt"),
		Kubeconfig: filepath.Join(s.Dir, "admin.kubeconfig"),

		SigningKeyFile: key,
	}
	if err := server.awaitReady(ctx, started); err != nil {
		server.Kill()
		return nil, err
	}
	if err := server.WriteKubeconfig(server.Kubeconfig, AdminToken, "default"); err != nil {
		server.Kill()
		return nil, err
	}
	return server, nil
}

// frontProxy returns the flags with which aggregated servers trust this server's identity
// headers, and with which it connects to their endpoints: nothing here routes cluster IPs.
func (s Stock) frontProxy() ([]string, error) {
	files, _, err := pki.Ensure(pki.Config{Dir: filepath.Join(s.Dir, "pki"), Now: time.Now()})
	if err != nil {
		return nil, err
	}
	return []string{
		"--enable-aggregator-routing",
		"--proxy-client-cert-file", files.FrontProxyCert, "--proxy-client-key-file", files.FrontProxyKey,
		"--requestheader-client-ca-file", files.FrontProxyCA, "--requestheader-allowed-names", pki.FrontProxyName,
		"--requestheader-username-headers", "X-Remote-User", "--requestheader-group-headers", "X-Remote-Group",
		"--requestheader-extra-headers-prefix", "X-Remote-Extra-",
	}, nil
}

func writeKey(path string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	return os.WriteFile(path, block, 0o600)
}
