package pki

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
)

// The names in the kubeconfig, which follow kubeadm's admin.conf.
const (
	clusterName = "byre"
	adminName   = "byre-admin"
	contextName = adminName + "@" + clusterName
)

// ClusterAdmins is the group of kubeadm's admin.conf. RBAC gives it its rights, and can take
// them away: the bootstrap policy binds it to the ClusterRole cluster-admin.
const ClusterAdmins = "kubeadm:cluster-admins"

// ensureKubeconfig creates the administrator's kubeconfig, or updates the entries that this
// program has written. It keeps everything that the administrator has changed: other
// clusters, users and contexts, the current context, a namespace, and a server address on
// another host.
func (k *ensurer) ensureKubeconfig() error {
	path := k.config.Kubeconfig
	if path == "" {
		return nil
	}
	config, err := clientcmd.LoadFromFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		config = api.NewConfig()
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	}
	userStale := k.needsUserCertificate(config.AuthInfos[adminName])
	if userStale && k.ca.signer == nil {
		// The CA's key is kept elsewhere, so its owner must issue the
		// administrator's certificate.
		k.report.NotRenewable = append(k.report.NotRenewable, filepath.Base(path))
		return nil
	}
	changed, err := k.updateCluster(config)
	if err != nil {
		return err
	}
	if userStale {
		if err := k.updateUser(config); err != nil {
			return err
		}
	} else if !changed {
		return nil
	}
	return k.writeKubeconfig(config)
}

func (k *ensurer) writeKubeconfig(config *api.Config) error {
	data, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	return k.write(k.config.Kubeconfig, data, keyMode)
}

// updateCluster sets the server's address and CA, and the name to expect, unless the administrator has set the
// address of another host or a CA file.
func (k *ensurer) updateCluster(config *api.Config) (changed bool, err error) {
	cluster := config.Clusters[clusterName]
	if cluster == nil {
		cluster = &api.Cluster{Server: k.config.Server}
		config.Clusters[clusterName] = cluster
	}
	if !isOwnAddress(cluster.Server, k.config.Server) || cluster.CertificateAuthority != "" {
		return false, nil
	}
	authority, err := os.ReadFile(k.rootCA())
	if err != nil {
		return false, err
	}
	serverName := k.serverName
	if cluster.TLSServerName != "" && k.accepts(cluster.TLSServerName) {
		serverName = cluster.TLSServerName
	}
	if cluster.Server == k.config.Server && bytes.Equal(cluster.CertificateAuthorityData, authority) &&
		cluster.TLSServerName == serverName {
		return false, nil
	}
	cluster.Server, cluster.CertificateAuthorityData, cluster.TLSServerName = k.config.Server, authority, serverName
	return true, nil
}

// isOwnAddress reports whether this program may have written the address: its host is this
// machine or the server's current host.
func isOwnAddress(address, server string) bool {
	a, err := url.Parse(address)
	if err != nil {
		return false
	}
	s, err := url.Parse(server)
	if err != nil {
		return false
	}
	host := a.Hostname()
	return host == s.Hostname() || host == "localhost" || net.ParseIP(host).IsLoopback()
}

// needsUserCertificate reports whether the administrator's certificate is missing or must be
// renewed. It returns false for other credentials, which the administrator has set.
func (k *ensurer) needsUserCertificate(user *api.AuthInfo) bool {
	if user == nil {
		return true
	}
	if len(user.ClientCertificateData) == 0 {
		return false
	}
	certs, err := certutil.ParseCertsPEM(user.ClientCertificateData)
	return err != nil || isAdmin(certs[0]) && !clientProfile(adminName).isSatisfiedBy(certs[0], k.ca.cert, k.config.Now)
}

// updateUser issues a certificate for the administrator. It adds the user and a context if
// they are missing.
func (k *ensurer) updateUser(config *api.Config) error {
	user := config.AuthInfos[adminName]
	cert, key, err := clientProfile(adminName, k.adminGroups(user)...).issuePEM(k.ca, k.config.Now)
	if err != nil {
		return err
	}
	if user == nil {
		user = api.NewAuthInfo()
		config.AuthInfos[adminName] = user
		config.Contexts[contextName] = &api.Context{Cluster: clusterName, AuthInfo: adminName}
		config.CurrentContext = cmp.Or(config.CurrentContext, contextName)
	}
	user.ClientCertificateData, user.ClientKeyData = cert, key
	return nil
}

// adminGroups returns the groups of a new certificate of the administrator: those of the
// certificate that it replaces, so that a renewal changes no rights.
func (k *ensurer) adminGroups(user *api.AuthInfo) []string {
	if user != nil {
		if certs, err := certutil.ParseCertsPEM(user.ClientCertificateData); err == nil {
			return certs[0].Subject.Organization
		}
	}
	return []string{cmp.Or(k.config.AdminGroup, ClusterAdmins)}
}

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
		return nil,
			fmt.Errorf("--duration must end before the CA does, on %s", k.ca.cert.NotAfter.UTC().Format(time.DateOnly))
	}
	cluster, err := k.clusterOf(c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	profile := clientProfile(user.Name, user.Groups...)
	profile.NotAfter = c.Now.Add(user.Lifetime)
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
		if cluster.CertificateAuthorityData, err = os.ReadFile(cmp.Or(cluster.CertificateAuthority,
			k.files.CACert)); err != nil {
			return nil, err
		}
	}
	cluster.CertificateAuthority, cluster.LocationOfOrigin = "", ""
	return cluster, nil
}
