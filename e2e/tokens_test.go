package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	jose "gopkg.in/go-jose/go-jose.v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"byre/e2e/servers"
)

// testIssuer verifies a service account's token as another server would: by the
// two documents that the server publishes.
func testIssuer(t *testing.T, s *servers.Server, issuer string) {
	const ns = "tokens"
	c := client(t, s)
	createNamespace(t, c, ns)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}
	if _, err := c.CoreV1().ServiceAccounts(ns).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, stderr, err := kubectl(t, kubeconfig(t, s.URL, s.CAFile, tokenUser(servers.AdminToken)), "create", "token",
		"robot", "-n", ns, "--audience", "vault")
	if err != nil {
		t.Fatal(stderr)
	}
	var metadata struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	getJSON(t, s, "/.well-known/openid-configuration", &metadata)
	if metadata.Issuer != issuer || !strings.HasSuffix(metadata.Keys, "/openid/v1/jwks") {
		t.Errorf("the document says %+v", metadata)
	}
	var keys jose.JSONWebKeySet
	getJSON(t, s, "/openid/v1/jwks", &keys)
	signed, err := jose.ParseSigned(strings.TrimSpace(token))
	if err != nil {
		t.Fatal(err)
	}
	found := keys.Key(signed.Signatures[0].Header.KeyID)
	if len(found) != 1 {
		t.Fatalf("%d published keys have signed", len(found))
	}
	payload, err := signed.Verify(found[0])
	if err != nil {
		t.Fatal(err)
	}
	var claims struct {
		Issuer   string   `json:"iss"`
		Subject  string   `json:"sub"`
		Audience []string `json:"aud"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatal(err)
	}
	if claims.Issuer != issuer || claims.Subject != "system:serviceaccount:tokens:robot" || len(claims.Audience) != 1 ||
		claims.Audience[0] != "vault" {
		t.Errorf("the token says %+v", claims)
	}
}

func getJSON(t *testing.T, s *servers.Server, path string, into any) {
	t.Helper()
	status, body := get(t, s, servers.AdminToken, path)
	if err := json.Unmarshal([]byte(body), into); err != nil {
		t.Fatalf("%s answers %d %s: %v", path, status, body, err)
	}
}
