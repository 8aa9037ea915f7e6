package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"

	"byre/sqlstore/eventually"
)

func TestToken_IsRefusedIfTheServerAcceptsNone(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	_, _, errOut := call("token", "create", "--kubeconfig", filepath.Join(server.dir, "admin.kubeconfig"))
	if !strings.Contains(errOut, "start it with --enable-bootstrap-token-auth") {
		t.Error(errOut)
	}
	secrets, err := kubernetes.NewForConfigOrDie(server.config(t)).CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(secrets.Items) > 0 {
		t.Errorf("%d Secrets are left: %v", len(secrets.Items), err)
	}
}

// TestToken_WaitsForOtherReplicas: behind a load balancer, a server that has not seen the new token yet refuses it.
func TestToken_WaitsForOtherReplicas(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) < 3 {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	t.Cleanup(server.Close)
	if err := tryToken(t.Context(), &rest.Config{Host: server.URL}, "abcdef.0123456789abcdef"); err != nil {
		t.Errorf("after %d requests: %v", asked.Load(), err)
	}
}

// TestToken_LetsANodeJoin runs the script, without systemd, and requests certificates as the kubelet does which it
// configures.
func TestToken_LetsANodeJoin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	chain, key, err := cert.GenerateSelfSignedCertKey("api.example.com", []net.IP{net.ParseIP("198.51.100.78")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := filepath.Join(dir, "sni.crt"), filepath.Join(dir, "sni.key")
	if err := errors.Join(os.WriteFile(certFile, chain, 0o600), os.WriteFile(keyFile, key, 0o600)); err != nil {
		t.Fatal(err)
	}
	server := startServer(t, dir, "--enable-bootstrap-token-auth", "--external-hostname=198.51.100.77", "--tls-sni-cert-key="+certFile+","+keyFile)
	script, _ := succeed(t, "token", "create", "--print-join", "--kubeconfig", filepath.Join(dir, "admin.kubeconfig"), "--join-server", server.config(t).Host)
	host := t.TempDir()
	script = strings.NewReplacer("/etc/", host+"/etc/").Replace(script)
	script = regexp.MustCompile(`(?m)^systemctl .*\n`).ReplaceAllString(script, "")
	if err := os.MkdirAll(filepath.Join(host, "etc/systemd/system"), 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, file := range []string{"kubernetes/kubelet.yaml", "kubernetes/pki/ca.crt", "systemd/system/kubelet.service"} {
		if content, err := os.ReadFile(filepath.Join(host, "etc", file)); err != nil || len(content) == 0 {
			t.Errorf("%s: %v", file, err)
		}
	}
	joining, err := clientcmd.BuildConfigFromFlags("", filepath.Join(host, "etc/kubernetes/bootstrap.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	name := request(t, joining, certificatesv1.KubeAPIServerClientKubeletSignerName, usages, nodeRequest("node-1"))
	root := kubernetes.NewForConfigOrDie(server.config(t))
	expectApproved(t, root, name)

	advertised, err := root.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ownAddress := advertised.Endpoints[0].Addresses[0]
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	hostname = strings.ToLower(hostname)
	for name, addresses := range map[string][]string{
		"node-1": {"198.51.100.1", "198.51.100.3"}, "node-2": {"198.51.100.2", "198.51.100.3"}, "liar": {"10.0.0.1", "127.0.0.1", "198.51.100.78"},
		"kubernetes": {"198.51.100.9"}, hostname: {ownAddress, "198.51.100.77"},
	} {
		makeNode(t, root, name, addresses...)
	}
	var pending, approved []string
	for _, c := range []struct {
		node, name, address string
		isApproved          bool
	}{
		{"liar", "", "10.0.0.1", false}, // the Service kubernetes
		{"liar", "", "127.0.0.1", false},
		{"liar", "", ownAddress, false},
		{"liar", "", "198.51.100.78", false}, // in a certificate that the server serves
		{"liar", "kubernetes.default.svc", "", false},
		{"kubernetes", "kubernetes", "198.51.100.9", false},
		{"node-1", "node-2", "198.51.100.1", false},
		{"node-1", "node-1", "198.51.100.2", false},
		{"node-1", "node-1", "198.51.100.3", false}, // two Nodes have it
		{"node-1", "node-1", "198.51.100.4", false},
		{"node-1", "node-1", "198.51.100.1", true},
		{hostname, hostname, ownAddress, true},
		{hostname, "", "198.51.100.77", true}, // --external-hostname of the only server
	} {
		made := requestServing(t, server, c.node, c.name, c.address)
		if c.isApproved {
			approved = append(approved, made)
		} else {
			pending = append(pending, made)
		}
	}
	for _, name := range approved { // they were asked for last, and each is looked at in turn
		expectApproved(t, root, name)
	}
	expectReplicaApproved(t, server, root, hostname, ownAddress)
	for _, name := range pending {
		csr, err := root.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || len(csr.Status.Conditions) > 0 {
			t.Errorf("%v, %v: want a request that waits for a human", csr, err)
		}
	}
}

// expectReplicaApproved moves the server's address to a Node that has the name of another server's host.
func expectReplicaApproved(t *testing.T, server *process, root kubernetes.Interface, old, address string) {
	t.Helper()
	if err := root.CoreV1().Nodes().Delete(t.Context(), old, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	now := metav1.NowMicro()
	_, err := root.CoordinationV1().Leases("kube-system").Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "apiserver-2", Labels: map[string]string{
			"apiserver.kubernetes.io/identity": "kube-apiserver", corev1.LabelHostname: "byre-2",
		}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new("apiserver-2_1"), LeaseDurationSeconds: new(int32(3600)), RenewTime: &now},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	makeNode(t, root, "byre-2", address)
	expectApproved(t, root, requestServing(t, server, "byre-2", "byre-2", address))
}

func makeNode(t *testing.T, root kubernetes.Interface, name string, addresses ...string) {
	t.Helper()
	node, err := root.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	if _, err := root.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// requestServing requests a certificate for serving as the kubelet of a node, and returns the request's name.
func requestServing(t *testing.T, server *process, node, name, address string) string {
	t.Helper()
	wanted := nodeRequest(node)
	if name != "" {
		wanted.DNSNames = []string{name}
	}
	if address != "" {
		wanted.IPAddresses = []net.IP{net.ParseIP(address)}
	}
	as := server.config(t)
	as.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + node, Groups: []string{"system:nodes", "system:authenticated"}}
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	return request(t, as, certificatesv1.KubeletServingSignerName, usages, wanted)
}

// nodeRequest is a request by a kubelet.
func nodeRequest(node string) x509.CertificateRequest {
	return x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}}
}

// request makes a CertificateSigningRequest, and returns its name.
func request(t *testing.T, config *rest.Config, signer string, usages []certificatesv1.KeyUsage, wanted x509.CertificateRequest) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &wanted, key)
	if err != nil {
		t.Fatal(err)
	}
	made, err := kubernetes.NewForConfigOrDie(config).CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: signer, Usages: usages, Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made.Name
}

// expectApproved waits until a request is approved and signed.
func expectApproved(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	eventually.True(t, name+" is signed", func() bool {
		csr, err := client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(csr.Status.Certificate) > 0
	})
}
