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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"byre/sqlstore/storetest"
)

func TestToken_IsRefusedIfTheServerAcceptsNone(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	_, _, errOut := call("token", "create", "--kubeconfig", filepath.Join(server.dir, "admin.kubeconfig"))
	if !strings.Contains(errOut, "start it with --enable-bootstrap-token-auth") {
		t.Error(errOut)
	}
	secrets, err := kubernetes.NewForConfigOrDie(server.config(t)).CoreV1().Secrets("kube-system").List(t.Context(),
		metav1.ListOptions{})
	if err != nil || len(secrets.Items) > 0 {
		t.Errorf("%d Secrets are left: %v", len(secrets.Items), err)
	}
}

// TestToken_JoinServerIsAURL: a node sends its token there, and the text becomes part of a script that root runs.
func TestToken_JoinServerIsAURL(t *testing.T) {
	t.Parallel()
	for text, isValid := range map[string]bool{
		"": true, "https://byre.example.com": true, "https://192.0.2.1:6443": true, "https://[2001:db8::1]:6443": true,
		"https://byre.example.com/cluster": true,
		"http://byre.example.com":          false, "byre.example.com:6443": false, "https://": false, "https://:6443": false,
		"https://a:0": false, "https://a:x": false,
		"https://u:p@a": false, "https://a?b": false, "https://a#b": false, "https://a\nreboot": false,
		"https://a/\nEOT\nreboot": false, "https://a b": false, "https://$(reboot)": false,
	} {
		if err := checkJoinServer(text); (err == nil) != isValid {
			t.Errorf("%q: %v", text, err)
		}
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
	server := startServer(t, dir, "--enable-bootstrap-token-auth", "--external-hostname=198.51.100.77",
		"--tls-sni-cert-key="+certFile+","+keyFile)
	script, _ := succeed(t, "token", "create", "--print-join", "--kubeconfig", filepath.Join(dir, "admin.kubeconfig"),
		"--join-server", server.config(t).Host)
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
		"node-1": {"198.51.100.1", "198.51.100.3"}, "node-2": {"198.51.100.2", "198.51.100.3"},
		"liar":       {"10.0.0.1", "127.0.0.1", ownAddress, "198.51.100.78"},
		"kubernetes": {"198.51.100.9"}, "byre.host": {"198.51.100.77"},
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
		{"node-1", "", "169.254.0.1", false},
		{hostname, hostname, "", false},
		{"byre.host", "", "198.51.100.77", false}, // --external-hostname
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
	expectHostApproved(t, server, filepath.Join(dir, "admin.kubeconfig"), hostname, ownAddress, "198.51.100.77")
	for _, name := range pending {
		if isDecided(t, root, name) {
			t.Errorf("%s does not wait for a human", name)
		}
	}
}

// expectHostApproved joins the server's own host as a Node, by a token that was made for it.
func expectHostApproved(t *testing.T, server *serverProcess, kubeconfig, host string, addresses ...string) {
	t.Helper()
	if _, _, errOut := call("token", "create", "--node", "node-1", "--kubeconfig", kubeconfig); !strings.Contains(errOut,
		"there is a Node node-1 already") {
		t.Error(errOut)
	}
	token, _ := succeed(t, "token", "create", "--node", strings.ToUpper(host), "--data-dir", filepath.Dir(kubeconfig))
	config := server.config(t)
	root := kubernetes.NewForConfigOrDie(config)
	joining := rest.AnonymousClientConfig(config)
	joining.BearerToken = strings.TrimSpace(token)
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	name := requestBy(t, joining, key, certificatesv1.KubeAPIServerClientKubeletSignerName, usages, nodeRequest(host))
	expectApproved(t, root, name)
	signed, err := root.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kubelet := rest.AnonymousClientConfig(config)
	kubelet.CertData = signed.Status.Certificate
	if kubelet.KeyData, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		t.Fatal(err)
	}
	makeNode(t, root, host, addresses...)
	for _, address := range addresses {
		expectApproved(t, root, requestServingBy(t, kubelet, host, host, address))
	}
	if other := requestBy(t, joining, key, certificatesv1.KubeAPIServerClientKubeletSignerName, usages,
		nodeRequest(host)); isDecided(t, root, other) {
		t.Error("the token is good for a second certificate")
	}
}

func isDecided(t *testing.T, root kubernetes.Interface, name string) bool {
	t.Helper()
	csr, err := root.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return len(csr.Status.Conditions) > 0
}

func makeNode(t *testing.T, root kubernetes.Interface, name string, addresses ...string) {
	t.Helper()
	node, err := root.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		node.Status.Addresses = append(node.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	if _, err := root.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// requestServing requests a certificate for serving as the kubelet of a node, and returns the request's name.
func requestServing(t *testing.T, server *serverProcess, node, name, address string) string {
	t.Helper()
	as := server.config(t)
	as.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + node,
		Groups: []string{"system:nodes", "system:authenticated"}}
	return requestServingBy(t, as, node, name, address)
}

func requestServingBy(t *testing.T, as *rest.Config, node, name, address string) string {
	t.Helper()
	wanted := nodeRequest(node)
	if name != "" {
		wanted.DNSNames = []string{name}
	}
	if address != "" {
		wanted.IPAddresses = []net.IP{net.ParseIP(address)}
	}
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	return request(t, as, certificatesv1.KubeletServingSignerName, usages, wanted)
}

// nodeRequest is a request by a kubelet.
func nodeRequest(node string) x509.CertificateRequest {
	return x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node,
		Organization: []string{"system:nodes"}}}
}

// request makes a CertificateSigningRequest, and returns its name.
func request(
	t *testing.T, config *rest.Config, signer string, usages []certificatesv1.KeyUsage, wanted x509.CertificateRequest,
) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return requestBy(t, config, key, signer, usages, wanted)
}

func requestBy(
	t *testing.T, config *rest.Config, key *ecdsa.PrivateKey, signer string, usages []certificatesv1.KeyUsage,
	wanted x509.CertificateRequest,
) string {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &wanted, key)
	if err != nil {
		t.Fatal(err)
	}
	made, err := kubernetes.NewForConfigOrDie(config).CertificatesV1().CertificateSigningRequests().Create(t.Context(),
		&certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: signer, Usages: usages,
				Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
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
	storetest.Eventually(t, name+" is signed", func() bool {
		csr, err := client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(csr.Status.Certificate) > 0
	})
}
