package main

import (
	"context"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"

	"byre/sqlstore/storetest"
)

// testClientCertificate approves a request by hand and uses the certificate.
func testClientCertificate(t *testing.T, config *rest.Config) {
	client := kubernetes.NewForConfigOrDie(config)
	request, key := certificateRequest(t, "jane", certificatesv1.KubeAPIServerClientSignerName, pkix.Name{CommonName: "jane"})
	if _, err := client.CertificatesV1().CertificateSigningRequests().Create(t.Context(), request, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	approve(t, client, "jane")
	authenticates(t, config, "jane", key, "jane")
}

// testKubeletCertificate requests a certificate as a kubelet that has nothing but a bootstrap
// token. Nobody approves the request by hand.
func testKubeletCertificate(t *testing.T, config *rest.Config) {
	const id, secret, group = "abcdef", "0123456789abcdef", "system:bootstrappers:nodes"
	client := kubernetes.NewForConfigOrDie(config)
	token := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id, Namespace: "kube-system"},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true", "auth-extra-groups": group,
		},
	}
	if _, err := client.CoreV1().Secrets("kube-system").Create(t.Context(), token, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, role := range map[string]string{
		"bootstrap": "system:node-bootstrapper", "approve": "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
	} {
		_, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	bootstrap := rest.AnonymousClientConfig(config)
	bootstrap.BearerToken = id + "." + secret
	requests := kubernetes.NewForConfigOrDie(bootstrap).CertificatesV1().CertificateSigningRequests()
	request, key := certificateRequest(t, "edge", certificatesv1.KubeAPIServerClientKubeletSignerName,
		pkix.Name{CommonName: "system:node:edge", Organization: []string{"system:nodes"}})
	// The server reads tokens and bindings from caches.
	storetest.EventuallyDone(t, "the request is accepted", func(ctx context.Context) (bool, error) {
		_, err := requests.Create(ctx, request, metav1.CreateOptions{})
		return err == nil, err
	})
	authenticates(t, config, "edge", key, "system:node:edge")
}

// authenticates waits for the certificate of a request and checks whose it is for the server.
func authenticates(t *testing.T, config *rest.Config, request string, key []byte, user string) {
	t.Helper()
	requests := kubernetes.NewForConfigOrDie(config).CertificatesV1().CertificateSigningRequests()
	holder := rest.AnonymousClientConfig(config)
	holder.KeyData = key
	storetest.EventuallyDone(t, "a certificate", func(ctx context.Context) (bool, error) {
		found, err := requests.Get(ctx, request, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		holder.CertData = found.Status.Certificate
		return len(holder.CertData) > 0, nil
	})
	review, err := kubernetes.NewForConfigOrDie(holder).AuthenticationV1().SelfSubjectReviews().
		Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || review.Status.UserInfo.Username != user {
		t.Errorf("the certificate is that of %q, %v", review.Status.UserInfo.Username, err)
	}
}

// createExpiredRequest creates a CertificateSigningRequest whose certificate has expired.
func createExpiredRequest(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	requests := client.CertificatesV1().CertificateSigningRequests()
	// No controller of byre signs for this signer.
	request, data := certificateRequest(t, name, "example.com/signer", pkix.Name{CommonName: name})
	if _, err := requests.Create(t.Context(), request, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	approved := approve(t, client, name)
	key, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		t.Fatal(err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		t.Fatalf("the key is a %T", key)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)}
	der, err := x509.CreateCertificate(nil, template, template, signer.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	approved.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if _, err := requests.UpdateStatus(t.Context(), approved, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func approve(t *testing.T, client kubernetes.Interface, name string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	requests := client.CertificatesV1().CertificateSigningRequests()
	request, err := requests.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
	if request, err = requests.UpdateApproval(t.Context(), name, request, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return request
}

// certificateRequest returns a request for a client's certificate, and the key in PEM.
func certificateRequest(t *testing.T, name, signer string, subject pkix.Name) (*certificatesv1.CertificateSigningRequest, []byte) {
	t.Helper()
	data, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	key, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(nil, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: signer,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, data
}
