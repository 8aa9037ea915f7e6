package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
)

// The names inside the kubeconfig, after kubeadm's admin.conf. The group is
// system:masters, which is authorized without a role binding: the kubeconfig
// works on an empty database and on one whose bindings were broken.
const (
	clusterName = "byre"
	adminName   = "byre-admin"
	adminGroup  = "system:masters"
	contextName = adminName + "@" + clusterName
)

// kubeconfig keeps the administrator's kubeconfig while its certificate is
// good, and follows the server's address and authority.
func (k *keeper) kubeconfig() error {
	path := k.request.Kubeconfig
	if path == "" {
		return nil
	}
	config, err := clientcmd.LoadFromFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if config != nil && k.kubeconfigFits(config) {
		return nil
	}
	if k.root.signer == nil {
		// Nobody here can sign for the administrator; whoever keeps the
		// authority hands out access.
		k.report.Stale = append(k.report.Stale, filepath.Base(path))
		return nil
	}
	der, key, err := clientProfile(adminName, adminGroup).issue(k.root, k.request.Now)
	if err != nil {
		return err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	authority, err := os.ReadFile(k.files.CACert)
	if err != nil {
		return err
	}
	data, err := clientcmd.Write(api.Config{
		Clusters:       map[string]*api.Cluster{clusterName: {Server: k.request.Server, CertificateAuthorityData: authority}},
		AuthInfos:      map[string]*api.AuthInfo{adminName: {ClientCertificateData: encodeCerts([][]byte{der}), ClientKeyData: keyPEM}},
		Contexts:       map[string]*api.Context{contextName: {Cluster: clusterName, AuthInfo: adminName}},
		CurrentContext: contextName,
	})
	if err != nil {
		return err
	}
	return k.write(path, data, keyMode)
}

// kubeconfigFits reports whether the kubeconfig is one of ours that still works.
func (k *keeper) kubeconfigFits(config *api.Config) bool {
	cluster, user := config.Clusters[clusterName], config.AuthInfos[adminName]
	if cluster == nil || user == nil || cluster.Server != k.request.Server {
		return false
	}
	authority, err := os.ReadFile(k.files.CACert)
	if err != nil || !bytes.Equal(authority, cluster.CertificateAuthorityData) {
		return false
	}
	block, _ := pem.Decode(user.ClientCertificateData)
	if block == nil {
		return false
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	return err == nil && clientProfile(adminName, adminGroup).fits(cert, k.root.cert, k.request.Now)
}
