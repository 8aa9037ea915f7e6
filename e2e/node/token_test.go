package node

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// tokenLifetime is the shortest lifetime that a projected token can have.
const tokenLifetime = 600 * time.Second

// agent runs on the node for as long as the node does, and has a projected token.
const agent = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: agent
        image: ` + image + `
        imagePullPolicy: Never
        volumeMounts: [{name: token, mountPath: /token}]
      volumes:
      - name: token
        projected: {sources: [{serviceAccountToken: {path: token, expirationSeconds: 600}}]}
`

// token is what the agent's file holds, and when it was read.
type token struct {
	text string
	read time.Time
}

func (n *node) startAgent(t *testing.T) token {
	t.Helper()
	n.apply(t, agent)
	n.kubectl(t, "rollout", "status", "daemonset/agent", "--timeout=5m")
	return n.agentToken(t)
}

func (n *node) agentToken(t *testing.T) token {
	t.Helper()
	return token{n.kubectl(t, "exec", "daemonset/agent", "--", "cat", "/token/token"), time.Now()}
}

// review asks byre by a TokenReview whether a token is valid, and whose it is.
func (n *node) review(t *testing.T, token string) string {
	t.Helper()
	answer, err := n.tryKubectl(t,
		fmt.Sprintf(`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":%q}}`, token),
		"create", "-f", "-", "-o", "jsonpath={.status.authenticated} {.status.user.username}")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(answer)
}

const defaultUser = "true system:serviceaccount:default:default"

// testToken reviews the token that every Pod has.
func (n *node) testToken(t *testing.T) {
	text := n.kubectl(t, "exec", n.pods(t)[0], "--", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")
	if got := n.review(t, text); got != defaultUser {
		t.Errorf("review of the token: %q", got)
	}
}

// testRenewal: the kubelet renews a token when a fifth of its lifetime is left, so that the
// file never holds an expired one. Both tokens are valid until the first expires.
func (n *node) testRenewal(t *testing.T, first token) {
	end := time.After(time.Until(first.read.Add(tokenLifetime)))
	renewed := first
	for renewed.text == first.text {
		select {
		case <-end:
			t.Fatalf("the token of %v is not renewed when it ends", first.read)
		case <-time.After(5 * time.Second):
			renewed = n.agentToken(t)
		}
	}
	t.Logf("the token was renewed after %v", renewed.read.Sub(first.read).Round(time.Second))
	for _, token := range []token{first, renewed} {
		if got := n.review(t, token.text); got != defaultUser {
			t.Errorf("review of the token of %v: %q", token.read, got)
		}
	}
	<-end
	waitFor(t, "the first token ends", func() error {
		if got := n.review(t, first.text); got == defaultUser {
			return fmt.Errorf("it is good %v after it was read", time.Since(first.read))
		}
		return nil
	})
	if got := n.review(t, renewed.text); got != defaultUser {
		t.Errorf("review of the renewed token: %q", got)
	}
}
