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
	"slices"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"
)

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
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id, Namespace: "kube-system"}, Type: "bootstrap.kubernetes.io/token"}
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
func sign(t *testing.T, csr *certificatesv1.CertificateSigningRequest, reason string) (signed *certificatesv1.CertificateSigningRequest, credential string) {
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
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Reason: reason}}
	fingerprint := sha256.Sum256(der)
	return csr, "X509SHA256=" + hex.EncodeToString(fingerprint[:])
}
