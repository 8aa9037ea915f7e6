package controllers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"
)

// TestServingApprover_RefusesWhatIsAnothers: this server and one on byre-2 have published their hosts, and a third
// server is an endpoint of the Service kubernetes.
func TestServingApprover_RefusesWhatIsAnothers(t *testing.T) {
	t.Parallel()
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	hostname = strings.ToLower(hostname)
	const proven = "X509SHA256=byre-2"
	for _, c := range []struct {
		node, credential, asked string
		isApproved              bool
	}{
		{"node-1", "", "node-1", true},
		{"node-1", "", "192.0.2.9", true},
		{"node-1", "", "2001:db8::9", true},
		{"node-1", "", "192.0.2.8", false}, // in no status
		{"node-1", "", "node-2", false},

		// this server's
		{"node-1", "", "192.0.2.1", false},
		{"node-1", "", "192.0.2.100", false},
		{"node-1", "", "2001:db8::1", false},
		{"api.example.com", "", "api.example.com", false},
		{"API.Example.com", "", "API.Example.com", false},
		{"*.example.com", "", "*.example.com", false},
		{"foo.wildcard.example.com", "", "foo.wildcard.example.com", false},
		{"foo.bar.wildcard.example.com", "", "foo.bar.wildcard.example.com", true},
		{hostname, "", hostname, false},
		{hostname, proven, hostname, false},
		{hostname, "", "192.0.2.1", false},

		// the other one's
		{"node-1", "", "192.0.2.2", false},
		{"node-1", "", "192.0.2.102", false},
		{"two.example.com", "", "two.example.com", false},
		{"byre-2", "", "byre-2", false},
		{"byre-2", "", "192.0.2.2", false},
		{"byre-2", "X509SHA256=another", "192.0.2.2", false},
		{"byre-2", proven, "byre-2", true},
		{"byre-2", proven, "192.0.2.2", true},
		{"byre-2", proven, "192.0.2.102", true},
		{"byre-2", proven, "192.0.2.1", false},
		{"byre-2", proven, "192.0.2.3", false},
		{"node-1", proven, "192.0.2.2", false},

		// the third one's
		{"node-1", "", "192.0.2.3", false},

		{"*.default.svc", "", "*.default.svc", false},
		{"kubernetes", "", "kubernetes", false},
		{"kubernetes.default.svc", "", "kubernetes.default.svc", false},
		{"localhost", "", "localhost", false},
		{"node-1", "", "10.0.0.1", false}, // Services
		{"node-1", "", "10.0.255.7", false},
		{"node-1", "", "fd00::7", false},
		{"node-1", "", "127.0.0.1", false},
		{"byre-2", proven, "127.0.0.1", false},
		{"node-1", "", "::1", false},
		{"node-1", "", "0.0.0.0", false},
		{"node-1", "", "::", false},
		{"node-1", "", "169.254.169.254", false},
		{"node-1", "", "fe80::1", false},
		{"node-1", "", "224.0.0.1", false},
		{"node-1", "", "ff02::1", false},
		{"node-1", "", "255.255.255.255", false},
	} {
		var addresses []string
		if c.asked != "192.0.2.8" && net.ParseIP(c.asked) != nil {
			addresses = append(addresses, c.asked)
		}
		nodes := []runtime.Object{newNode(c.node, addresses...)}
		if strings.HasPrefix(c.asked, "192.0.2.") && c.node != "node-1" { // it stops no server's certificate
			nodes = append(nodes, newNode("liar", addresses...))
		}
		approver := newTestApprover(nodes...)
		if _, refused := refuse(t, approver, c.node, c.credential, c.asked); (refused == "") != c.isApproved {
			t.Errorf("%s asks for %s by %q: %q; approved should be %v", c.node, c.asked, c.credential, refused, c.isApproved)
		}
	}
}

// TestServingApprover_KeepsAnAddressForItsNode: a node that says that it has the address of another neither gets a
// certificate for it, nor stops those of the other one.
func TestServingApprover_KeepsAnAddressForItsNode(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"192.0.2.9", "2001:db8::9"} {
		approver := newTestApprover(newNode("node-1", address), newNode("liar"))
		claims, refused := refuse(t, approver, "node-1", "", address)
		if refused != "" || len(claims) != 1 {
			t.Fatalf("%q, %v", refused, claims)
		}
		if err := approver.claim(t.Context(), "node-1", claims); err != nil {
			t.Fatal(err)
		}
		nodes := approver.self.CoreV1().Nodes()
		liar := newNode("liar", strings.ToUpper(address))
		if _, err := nodes.Update(t.Context(), liar, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, refused := refuse(t, approver, "liar", "", address); refused == "" {
			t.Errorf("another node has been given a certificate for %s", address)
		}
		if claims, refused := refuse(t, approver, "node-1", "", address); refused != "" || len(claims) > 0 {
			t.Errorf("the node is refused its own address %s: %q, %v", address, refused, claims)
		}
		// The address is another's once the Node has left it.
		kept, err := nodes.Get(t.Context(), "node-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		kept.Status.Addresses = nil
		if _, err := nodes.UpdateStatus(t.Context(), kept, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, refused := refuse(t, approver, "liar", "", address); refused != "" {
			t.Error(refused)
		}
	}
}

// TestServingApprover_LetsAHumanDecide: of two nodes with one address, neither of which has a certificate for it yet,
// none gets it.
func TestServingApprover_LetsAHumanDecide(t *testing.T) {
	t.Parallel()
	approver := newTestApprover(newNode("node-1", "192.0.2.9"), newNode("node-2", "192.0.2.9"))
	for _, node := range []string{"node-1", "node-2"} {
		if _, refused := refuse(t, approver, node, "", "192.0.2.9"); refused == "" {
			t.Errorf("%s has been given the address", node)
		}
	}
}

func newNode(name string, addresses ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, address := range addresses {
		node.Status.Addresses = append(node.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	return node
}

// newTestApprover returns the approver of a server in a cluster with other servers and some Nodes.
func newTestApprover(nodes ...runtime.Object) *servingApprover {
	published :=
		`{"hostname":"Byre-2","hosts":["192.0.2.2","192.0.2.102","two.example.com"],"until":"2999-01-01T00:00:00Z"}`
	client := fake.NewClientset(append(nodes,
		&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
			Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.0.0.0/16", "fd00::/108"}}},
		&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default",
				Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.3"}}},
		},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "byre-apiserver-hosts", Namespace: "kube-system"},
			Data: map[string]string{"apiserver-2": published}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "byre-node-credentials", Namespace: "kube-system"},
			Data: map[string]string{"byre-2": "X509SHA256=older X509SHA256=byre-2"}},
	)...)
	return &servingApprover{self: client, id: "apiserver-1", hosts: func() ([]string, error) {
		return []string{"192.0.2.1", "192.0.2.100", "2001:0DB8::1", "API.example.com.", "*.wildcard.example.com"}, nil
	}}
}

func refuse(t *testing.T, approver *servingApprover, node, credential, asked string) (claims []string, refused string) {
	t.Helper()
	request := &x509.CertificateRequest{DNSNames: []string{asked}}
	if ip := net.ParseIP(asked); ip != nil {
		request = &x509.CertificateRequest{IPAddresses: []net.IP{ip}}
	}
	claims, refused, err := approver.refuse(t.Context(), node, credential, request)
	if err != nil {
		t.Fatal(err)
	}
	return claims, refused
}

// TestNodeTokens_AreForOneNode: a token that was made for byre-1 gives byre-1 its first certificate and nothing else.
func TestNodeTokens_AreForOneNode(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, user, node string
		objects          []runtime.Object
		isApproved       bool
	}{
		{"its node", "system:bootstrap:abcdef", "byre-1", nil, true},
		{"another node", "system:bootstrap:abcdef", "byre-2", nil, false},
		{"the Node is there", "system:bootstrap:abcdef", "byre-1", []runtime.Object{newNode("byre-1")}, false},
		{"a token for any node", "system:bootstrap:123456", "byre-1", nil, false},
		{"a token that is gone", "system:bootstrap:000000", "byre-1", nil, false},
		{"the node itself", "system:node:byre-1", "byre-1", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			csr := newNodeRequest(t, c.user, "", c.node)
			client := fake.NewClientset(append(c.objects, csr, newToken("abcdef", "byre-1"), newToken("123456", ""))...)
			_ = nodeTokens{client}.handle(t.Context(), csr.DeepCopy()) // has an error for what is tried again
			got, err := client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), csr.Name, metav1.GetOptions{})
			if err != nil || (len(got.Status.Conditions) == 1) != c.isApproved {
				t.Errorf("%v, %v", got.Status, err)
			}
		})
	}
}

// TestNodeTokens_FollowTheCredential: the credential of a node that has joined by its token is known, and that of each
// renewal with it. A certificate for the same name that descends from another token is not.
func TestNodeTokens_FollowTheCredential(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	tokens := nodeTokens{client}
	known := func(want ...string) {
		t.Helper()
		got, err := provenCredentials(t.Context(), client, "byre-1")
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%q, %v, want %q", got, err, want)
		}
	}
	record := func(csr *certificatesv1.CertificateSigningRequest) {
		t.Helper()
		if err := tokens.record(t.Context(), csr); err != nil {
			t.Fatal(err)
		}
	}
	stolen, stolenCredential := sign(t, newNodeRequest(t, "system:bootstrap:123456", "", "byre-1"), autoApproved)
	record(stolen)
	known()
	first, firstCredential := sign(t, newNodeRequest(t, "system:bootstrap:abcdef", "", "byre-1"), nodeTokenReason)
	record(first)
	known(firstCredential)
	forged, _ := sign(t, newNodeRequest(t, "system:node:byre-1", stolenCredential, "byre-1"), autoApproved)
	record(forged)
	other, _ := sign(t, newNodeRequest(t, "system:node:node-1", firstCredential, "byre-1"), autoApproved)
	record(other)
	known(firstCredential)
	second, secondCredential := sign(t, newNodeRequest(t, "system:node:byre-1", firstCredential, "byre-1"), autoApproved)
	record(second)
	record(second) // an informer may tell it again
	known(secondCredential, firstCredential)
	third, thirdCredential := sign(t, newNodeRequest(t, "system:node:byre-1", secondCredential, "byre-1"), autoApproved)
	record(third)
	record(second) // a new leader lists the requests of the last hour
	known(thirdCredential, secondCredential)
	again, againCredential := sign(t, newNodeRequest(t, "system:bootstrap:fedcba", "", "byre-1"), nodeTokenReason)
	record(again)
	known(againCredential)
}

func newToken(id, node string) *corev1.Secret {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id, Namespace: "kube-system"},
		Type: "bootstrap.kubernetes.io/token"}
	if node != "" {
		secret.Annotations = map[string]string{TokenNodeAnnotation: node}
	}
	return secret
}

// newNodeRequest returns the request of a user for the client's certificate of a node.
func newNodeRequest(t *testing.T, by, credential, node string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	subject := pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "csr-1"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Username: by, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages:  []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		},
	}
	if credential != "" {
		csr.Spec.Extra = map[string]certificatesv1.ExtraValue{user.CredentialIDKey: {credential}}
	}
	return csr
}

// sign returns a request with its approval and its certificate, and the credential of that.
func sign(
	t *testing.T, csr *certificatesv1.CertificateSigningRequest, reason string,
) (signed *certificatesv1.CertificateSigningRequest, credential string) {
	t.Helper()
	block, _ := pem.Decode(csr.Spec.Request)
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	issued := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: request.Subject}
	der, err := x509.CreateCertificate(rand.Reader, issued, issued, request.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	csr.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved,
		Reason: reason}}
	fingerprint := sha256.Sum256(der)
	return csr, "X509SHA256=" + hex.EncodeToString(fingerprint[:])
}
