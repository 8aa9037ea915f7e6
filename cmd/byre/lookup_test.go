package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// The server looks up the user of a token and the endpoints of a webhook in the store without a request: neither the audit
// log nor the metrics of requests have one.
func TestLookup_MakesNoRequests(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := startServer(t, dir, "--controllers=", "--enable-bootstrap-token-auth", "--audit-policy-file", policy, "--audit-log-path", log)
	t.Run("of tokens", func(t *testing.T) { testLookupOfTokens(t, server, log) })
	t.Run("of endpoints", func(t *testing.T) { testLookupOfEndpoints(t, server, log) })
}

// testLookupOfTokens has valid and invalid tokens looked up.
func testLookupOfTokens(t *testing.T, server *serverProcess, log string) {
	config := server.config(t)
	client := kubernetes.NewForConfigOrDie(config)
	core := client.CoreV1()
	account, err := core.ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"},
	}
	if _, err := core.Secrets("kube-system").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bound, err := core.Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bound"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token, err := core.ServiceAccounts("default").CreateToken(t.Context(), account.Name, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: bound.Name, UID: bound.UID},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	whoami := func(token string) (string, error) {
		config := rest.AnonymousClientConfig(config)
		config.BearerToken = token
		review, err := kubernetes.NewForConfigOrDie(config).AuthenticationV1().SelfSubjectReviews().
			Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return review.Status.UserInfo.Username, err
	}
	for token, want := range map[string]string{
		token.Status.Token:        "system:serviceaccount:default:robot",
		"abcdef.0123456789abcdef": "system:bootstrap:abcdef",
	} {
		if name, err := whoami(token); err != nil || name != want {
			t.Errorf("the token of %s belongs to %q, %v", want, name, err)
		}
	}
	for _, token := range []string{"abcdef.fedcba9876543210", "uvwxyz.0123456789abcdef"} {
		if name, err := whoami(token); err == nil {
			t.Errorf("%s belongs to %s", token, name)
		}
	}
	if err := core.Secrets("default").Delete(t.Context(), bound.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expectNoRequests(t, server, log, "get", "secrets|serviceaccounts|pods|nodes")
}

// expectNoRequests fails the test if the server's metrics or its audit log have a request
// with the verb for one of the resources (a regular expression).
func expectNoRequests(t *testing.T, server *serverProcess, log, verb, resources string) {
	t.Helper()
	_, text := server.mustGet(t, "/metrics")
	events, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	counted := regexp.MustCompile(fmt.Sprintf(`(?m)^apiserver_request_total\{.*resource="(%s)".*verb="%s".*$`, resources, strings.ToUpper(verb)))
	for _, line := range counted.FindAllString(text, -1) {
		t.Errorf("in the metrics of requests: %s", line)
	}
	logged := regexp.MustCompile(fmt.Sprintf(`(?m)^.*"verb":"%s".*"resource":"(%s)".*$`, verb, resources))
	for _, line := range logged.FindAllString(string(events), -1) {
		t.Errorf("in the audit log: %s", line)
	}
}
