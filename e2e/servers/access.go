package servers

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// The bearer tokens that every server here knows.
const (
	AdminToken = "admin-token" // user admin in system:masters
	AliceToken = "alice-token" // user alice in group staff, who may do nothing
)

const tokenFile = AdminToken + ",admin,admin-uid,system:masters\n" +
	AliceToken + ",alice,alice-uid,staff\n"

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
		if e := p.Stop(); err == nil {
			err = e
		}
	}
	return err
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
	var client *http.Client
	err := s.await(ctx, func(ctx context.Context) error {
		if client == nil {
			if _, err := os.Stat(s.CAFile); err != nil {
				return err
			}
			made, err := rest.HTTPClientFor(s.Config(AdminToken))
			if err != nil {
				return err
			}
			client = made
		}
		return probe(ctx, client, s.URL+"/readyz")
	})
	s.StartTime = time.Since(started)
	return err
}

// probe asks once. A server that is just starting may take a connection and
// never answer on it: the next probe has a new one.
func probe(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		// The client's own CloseIdleConnections does not reach through client-go's
		// round trippers: over HTTP/2 the next probe would have the same connection.
		utilnet.CloseIdleConnectionsFor(client.Transport)
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
