package main

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	signertesting "k8s.io/kubernetes/pkg/serviceaccount/externaljwt/plugin/testing/v1"
)

// TestExternalSigner_SignsTokens: another process signs service account tokens. The server
// verifies them with that process's keys and limits their lifetime to what the process
// allows.
func TestExternalSigner_SignsTokens(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "signer") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // best effort, it is a temporary directory
	socket := filepath.Join(dir, "s")
	signer := signertesting.NewMockSigner(t, socket)
	t.Cleanup(signer.CleanUp)
	public, err := x509.MarshalPKIXPublicKey(&signer.SigningKey.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	signer.SetSupportedKeys(map[string]signertesting.KeyT{signer.SigningKeyID: {Key: public}})

	server := startServer(t, t.TempDir(), "--service-account-signing-endpoint", socket)
	client := kubernetes.NewForConfigOrDie(server.config(t))
	awaitAccount(t, client, "default")
	hour := int64(3600)
	request, err := client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &hour}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var header struct{ Kid string }
	var claims struct{ Exp, Iat int64 }
	for i, into := range []any{&header, &claims} {
		part, err := base64.RawURLEncoding.DecodeString(strings.Split(request.Status.Token, ".")[i])
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(part, into); err != nil {
			t.Fatal(err)
		}
	}
	if header.Kid != signer.SigningKeyID {
		t.Errorf("the token was signed by %q, not by the signer's %q", header.Kid, signer.SigningKeyID)
	}
	if life := claims.Exp - claims.Iat; life != signer.MaxTokenExpirationSeconds {
		t.Errorf("the token lives for %d s, the signer allows %d", life, signer.MaxTokenExpirationSeconds)
	}
	config := rest.AnonymousClientConfig(server.config(t))
	config.BearerToken = request.Status.Token
	if status, body, err := get(t.Context(), config, "/api"); err != nil || status != http.StatusOK {
		t.Errorf("the token is answered with %d %s, %v", status, body, err)
	}
	if status, body := server.mustGet(t, "/openid/v1/jwks"); status != http.StatusOK || !strings.Contains(body, signer.SigningKeyID) {
		t.Errorf("the published keys: %d %s", status, body)
	}
}
