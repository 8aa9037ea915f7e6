package main

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"byre/apiserver/process/pki"
	"byre/sqlstore/storetest"
)

// otherAuthority creates a CA and a client certificate for a user in system:masters, and
// returns their files.
func otherAuthority(t *testing.T) pki.Files {
	t.Helper()
	files, _, err := pki.Ensure(pki.Config{Dir: t.TempDir(), Hosts: []string{"127.0.0.1", "localhost"}, Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A server with a serving certificate, and clients, of another CA. Its own administrator is known too. Without
// --root-ca-file it warns.
func TestServe_FilesOfAnotherCA(t *testing.T) {
	t.Parallel()
	other := otherAuthority(t)
	dir := t.TempDir()
	server := command(t, dir, serveArgs(dir, "--client-ca-file", other.CACert,
		"--tls-cert-file", other.ServingCert, "--tls-private-key-file", other.ServingKey, "--tls-min-version=VersionTLS13")...)
	config := waitForConfig(t, server)
	config.CAFile, config.CAData = other.CACert, nil
	// At the first start RBAC forbids all until it has its roles.
	storetest.EventuallyDone(t, "an answer with the given certificate", func(ctx context.Context) (bool, error) {
		status, _, err := get(ctx, config, "/livez")
		return status == http.StatusOK, err
	})
	// The metric of certificates knows the given one, and those of byre.
	storetest.EventuallyDone(t, "metrics with the given certificate", func(ctx context.Context) (bool, error) {
		status, metrics, err := get(ctx, config, "/metrics")
		const metric = "byre_certificate_expiration_timestamp_seconds"
		return status == http.StatusOK && strings.Contains(metrics, metric+`{name="tls-cert-file"} `) && strings.Contains(metrics, metric+`{name="ca"} `), err
	})
	if log := server.log.String(); !strings.Contains(log, "name the CA of the certificate with --root-ca-file") {
		t.Error("there is no warning that nothing verifies the certificate")
	}
	client := rest.AnonymousClientConfig(config)
	client.CertFile, client.KeyFile = other.KubeletClientCert, other.KubeletKey
	status, body, err := get(t.Context(), client, "/apis")
	if err != nil || status != http.StatusOK {
		t.Errorf("a user of the given CA gets %d %s, %v", status, body, err)
	}
	client.CertFile, client.KeyFile = other.FrontProxyCert, other.FrontProxyKey
	if status, _, err := get(t.Context(), client, "/apis"); err != nil || status != http.StatusUnauthorized && status != http.StatusForbidden {
		t.Errorf("a user of a CA that was not given gets %d, %v", status, err)
	}
}

func TestServe_TokenAuthFile(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	for token, want := range map[string]int{sharedAdmin: http.StatusOK, sharedAlice: http.StatusForbidden, "wrong": http.StatusUnauthorized} {
		config := rest.AnonymousClientConfig(server.config(t))
		config.BearerToken = token
		status, body, err := get(t.Context(), config, "/api/v1/nodes")
		if err != nil || status != want {
			t.Errorf("token %s gets %d, want %d: %s, %v", token, status, want, strings.TrimSpace(body), err)
		}
	}
}

// TestServe_KubeletIsRestricted: with the default flags, a kubelet may register its Node
// and may not create a Pod with a service account.
func TestServe_KubeletIsRestricted(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	config := server.config(t)
	admin := kubernetes.NewForConfigOrDie(config)
	namespace, node := server.makeNamespace(t), "restricted"
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "powerful"}}
	if _, err := admin.CoreV1().ServiceAccounts(namespace).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + node, Groups: []string{"system:nodes", "system:authenticated"}}
	kubelet := kubernetes.NewForConfigOrDie(config)
	if _, err := kubelet.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("a kubelet registers its node: %v", err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "made"},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: "powerful",
			Containers: []corev1.Container{{Name: "c", Image: "i:1"}}},
	}
	if _, err := kubelet.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a kubelet creates a Pod with a service account: %v", err)
	}
}

// TestServe_KubeletClientMayUseKubelets: a kubelet that asks the server whether its client
// certificate may use it is answered with yes. The certificate gives no other rights.
func TestServe_KubeletClientMayUseKubelets(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	config := rest.AnonymousClientConfig(server.config(t))
	config.CertFile, config.KeyFile = filepath.Join(server.dir, "pki", "apiserver-kubelet-client.crt"), filepath.Join(server.dir, "pki", "apiserver-kubelet-client.key")
	reviews := kubernetes.NewForConfigOrDie(config).AuthorizationV1().SelfSubjectAccessReviews()
	for _, test := range []struct {
		verb, resource, subresource string
		want                        bool
	}{
		{"create", "nodes", "proxy", true}, {"get", "nodes", "log", true}, {"get", "nodes", "stats", true},
		{"get", "secrets", "", false}, {"create", "pods", "", false},
	} {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: test.verb, Resource: test.resource, Subresource: test.subresource},
		}}
		review, err := reviews.Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil || review.Status.Allowed != test.want {
			t.Errorf("%s %s/%s: %+v, %v", test.verb, test.resource, test.subresource, review.Status, err)
		}
	}
}
