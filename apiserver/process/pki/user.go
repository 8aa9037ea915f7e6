package pki

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// SystemMasters is the group that every authorizer allows everything.
const SystemMasters = "system:masters"

// User says for whom NewKubeconfig issues a certificate.
type User struct {
	Name   string
	Groups []string
	// Lifetime is how long the certificate is valid.
	Lifetime time.Duration
}

func (u User) validate() error {
	switch {
	case u.Name == "":
		return errors.New("--user must not be empty")
	case slices.Contains(u.Groups, ""):
		return errors.New("--group must not be empty")
	case u.Lifetime <= 0:
		return errors.New("--duration must be positive")
	}
	return nil
}

// NewKubeconfig issues a client certificate for the user and returns a kubeconfig with
// it. It writes nothing and keeps no copy. The address and the CA of the server are
// those of c.Kubeconfig; c.Server, if not empty, replaces the address. NewKubeconfig
// uses Dir, Kubeconfig, Server and Now of c.
func NewKubeconfig(c Config, user User) ([]byte, error) {
	if err := user.validate(); err != nil {
		return nil, err
	}
	k := ensurer{config: c, files: Paths(c.Dir)}
	if err := k.loadCAs(); err != nil {
		return nil, err
	}
	if k.ca.signer == nil {
		return nil, fmt.Errorf("%s does not exist: issue the certificate where the key of the CA is kept", k.files.CAKey)
	}
	if c.Now.Add(user.Lifetime).After(k.ca.cert.NotAfter) {
		return nil, fmt.Errorf("--duration must end before the CA does, on %s", k.ca.cert.NotAfter.UTC().Format(time.DateOnly))
	}
	cluster, err := k.clusterOf(c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	profile := clientProfile(user.Name, user.Groups...)
	profile.lifetime = user.Lifetime
	cert, key, err := profile.issuePEM(k.ca, c.Now)
	if err != nil {
		return nil, err
	}
	context := user.Name + "@" + clusterName
	return clientcmd.Write(api.Config{
		Clusters:       map[string]*api.Cluster{clusterName: cluster},
		AuthInfos:      map[string]*api.AuthInfo{user.Name: {ClientCertificateData: cert, ClientKeyData: key}},
		Contexts:       map[string]*api.Context{context: {Cluster: clusterName, AuthInfo: user.Name}},
		CurrentContext: context,
	})
}

// clusterOf returns how a client reaches the server. It is the cluster of the
// administrator's kubeconfig, which the administrator may have changed; if there is
// none, it has the CA of the directory.
func (k *ensurer) clusterOf(kubeconfig string) (*api.Cluster, error) {
	cluster := new(api.Cluster)
	config, err := clientcmd.LoadFromFile(kubeconfig)
	switch {
	case err == nil && config.Clusters[clusterName] != nil:
		cluster = config.Clusters[clusterName]
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if k.config.Server != "" {
		if u, err := url.Parse(k.config.Server); err != nil || u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("--server must be a URL such as https://byre.example.com:6443, not %q", k.config.Server)
		}
		cluster.Server = k.config.Server
	}
	if cluster.Server == "" {
		return nil, fmt.Errorf("%s has no address of the server: give --server", kubeconfig)
	}
	if len(cluster.CertificateAuthorityData) == 0 {
		if cluster.CertificateAuthorityData, err = os.ReadFile(cmp.Or(cluster.CertificateAuthority, k.files.CACert)); err != nil {
			return nil, err
		}
	}
	cluster.CertificateAuthority, cluster.LocationOfOrigin = "", ""
	return cluster, nil
}
