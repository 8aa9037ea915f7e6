package servers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/transport"
)

// The bearer tokens that every server here knows.
const (
	AdminToken = "admin-token" // user admin in system:masters
	AliceToken = "alice-token" // user alice in group staff, who may do nothing

	controllerManagerToken = "controller-manager-token"
	schedulerToken         = "scheduler-token"
)

const tokenFile = AdminToken + ",admin,admin-uid,system:masters\n" +
	AliceToken + ",alice,alice-uid,staff\n" +
	controllerManagerToken + ",system:kube-controller-manager,controller-manager-uid\n" +
	schedulerToken + ",system:kube-scheduler,scheduler-uid\n"

func writeTokens(dir string) (string, error) {
	path := filepath.Join(dir, "tokens.csv")
	return path, os.WriteFile(path, []byte(tokenFile), 0o600)
}

// Server is a Kubernetes API server that is up.
type Server struct {
	*Process
	// URL is its root, without a trailing slash.
	URL string
	// CAFile has the certificate that its clients trust.
	CAFile string
	// StartTime is how long it took from exec to a 200 of /readyz.
	StartTime time.Duration
	// Kubeconfig is that of the cluster's admin.
	Kubeconfig string
	// SigningKeyFile has the key that signs the tokens of service accounts.
	SigningKeyFile string
	// Beside are processes that it needs (etcd); Stop and Kill end them after it.
	Beside []*Process
}

// Config is for a client with a bearer token, without client-side rate limits.
func (s *Server) Config(token string) *rest.Config {
	return &rest.Config{
		Host:            s.URL,
		BearerToken:     token,
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.CAFile},
		QPS:             -1,
	}
}

// Stop ends the server and then what it needs.
func (s *Server) Stop() error {
	err := s.Process.Stop()
	for _, p := range s.Beside {
		if e := p.Stop(); err == nil && !isTerminated(e) {
			err = e
		}
	}
	return err
}

// isTerminated reports whether SIGTERM has ended a program. etcd, once it has closed its data,
// sends this signal to itself.
func isTerminated(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGTERM
}

// Kill ends the server and what it needs at once.
func (s *Server) Kill() {
	s.Process.Kill()
	for _, p := range s.Beside {
		p.Kill()
	}
}

// WriteKubeconfig writes a kubeconfig for a bearer token.
func (s *Server) WriteKubeconfig(path, token, namespace string) error {
	config := api.NewConfig()
	config.Clusters["cluster"] = &api.Cluster{Server: s.URL, CertificateAuthority: s.CAFile}
	config.AuthInfos["user"] = &api.AuthInfo{Token: token}
	config.Contexts["context"] = &api.Context{Cluster: "cluster", AuthInfo: "user", Namespace: namespace}
	config.CurrentContext = "context"
	return clientcmd.WriteToFile(*config, path)
}

// awaitReady waits until /readyz answers 200 and notes how long that took.
func (s *Server) awaitReady(ctx context.Context, started time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := s.await(ctx, func(ctx context.Context) error {
		if _, err := os.Stat(s.CAFile); err != nil {
			return err
		}
		config := s.Config(AdminToken)
		trust, err := rest.TLSConfigFor(config)
		if err != nil {
			return err
		}
		client := &http.Client{Transport: transport.NewBearerAuthRoundTripper(config.BearerToken, freshTransport(trust))}
		return probe(ctx, client, s.URL+"/readyz")
	})
	s.StartTime = time.Since(started)
	return err
}

// freshTransport returns a transport that makes a connection for each request. A server
// that is just starting may take a connection and never answer on it; a transport that
// keeps connections may then use it for all requests.
func freshTransport(trust *tls.Config) http.RoundTripper {
	return &http.Transport{TLSClientConfig: trust, DisableKeepAlives: true}
}

// probe sends one request; it fails unless the answer is 200.
func probe(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", url, res.Status, body)
	}
	return nil
}
