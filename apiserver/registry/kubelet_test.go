package registry_test

import (
	"bufio"
	"context"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"byre/apiserver/registry"
)

// podPath is the path of a pod's subresource.
func podPath(name, subresource string) string {
	return "/api/v1/namespaces/default/pods/" + name + "/" + subresource
}

// answer is the server's answer to a request.
type answer struct {
	code   int
	header http.Header
	body   string
}

// ask sends a request without a typed client and follows no redirect.
func (k *kubelets) ask(t *testing.T, method, path, body string, header http.Header) answer {
	t.Helper()
	res := k.open(t, method, path, body, header)
	defer res.Body.Close()
	if res.StatusCode == http.StatusSwitchingProtocols {
		return answer{res.StatusCode, res.Header, "a stream"}
	}
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(text)}
}

func (k *kubelets) open(t *testing.T, method, path, body string, header http.Header) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, k.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(req.Header, header)
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// upgradeTo returns the headers that ask for an upgrade to the protocol.
func upgradeTo(protocol string) http.Header {
	return http.Header{"Connection": {"Upgrade"}, "Upgrade": {protocol}}
}

// TestKubelet_ServesLogs: a request for logs reaches the kubelet's log endpoint of the
// container, with its options.
func TestKubelet_ServesLogs(t *testing.T) {
	t.Parallel()
	k := startKubelets(t)
	k.addPod(t, "p", nodeName, "")
	k.addPod(t, "waiting", "", "")
	for _, test := range []struct {
		pod, query string
		code       int
		want       string // the kubelet's URI, or a part of the answer
	}{
		{"p", "container=c", http.StatusOK, "/containerLogs/default/p/c?"},
		{"p", "container=d&follow=true&previous=true&timestamps=true&tailLines=3&limitBytes=7&sinceSeconds=9", http.StatusOK,
			"/containerLogs/default/p/d?follow=true&limitBytes=7&previous=true&sinceSeconds=9&tailLines=3&timestamps=true"},
		{"p", "", http.StatusBadRequest, "a container name must be specified for pod p, choose one of: [c d]"},
		{"p", "container=e", http.StatusBadRequest, "container e is not valid for pod p"},
		{"p", "container=c&tailLines=-1", http.StatusUnprocessableEntity, "must be greater than or equal to 0"},
		{"waiting", "container=c", http.StatusNoContent, ""},
		{"gone", "container=c", http.StatusNotFound, `pods \"gone\" not found`},
	} {
		got := k.ask(t, http.MethodGet, podPath(test.pod, "log")+"?"+test.query, "", nil)
		asked := k.kubelet.asked()
		if got.code != test.code {
			t.Errorf("%s?%s: %d %s", test.pod, test.query, got.code, got.body)
		}
		if test.code != http.StatusOK {
			if len(asked) != 0 || !strings.Contains(got.body, test.want) {
				t.Errorf("%s?%s: answer %s, kubelet asked %v", test.pod, test.query, got.body, asked)
			}
			continue
		}
		if len(asked) != 1 || !strings.HasPrefix(asked[0].path+"?"+asked[0].query, test.want) {
			t.Errorf("%s?%s: kubelet asked %v", test.pod, test.query, asked)
		}
		if got.body != "answer to GET" || got.header.Get("Content-Type") != "text/plain" {
			t.Errorf("%s?%s: %q of %s", test.pod, test.query, got.body, got.header.Get("Content-Type"))
		}
	}
}

// TestKubelet_ServesStreams: streaming requests reach the kubelet in the protocol that the
// client asked for.
func TestKubelet_ServesStreams(t *testing.T) {
	t.Parallel()
	k := startKubelets(t)
	k.addPod(t, "p", nodeName, "")
	for _, test := range []struct{ method, subresource, query, protocol, want string }{
		{http.MethodPost, "exec", "container=c&command=ls&command=-l&stdin=true&stdout=true&tty=true", "SPDY/3.1",
			"/exec/default/p/c?command=ls&command=-l&input=1&output=1&tty=1"},
		{http.MethodGet, "exec", "container=c&command=ls&stderr=true", "websocket", "/exec/default/p/c?command=ls&error=1"},
		{http.MethodPost, "attach", "container=d&stdout=true", "SPDY/3.1", "/attach/default/p/d?output=1"},
		{http.MethodGet, "attach", "container=d&stdout=true", "websocket", "/attach/default/p/d?output=1"},
		{http.MethodPost, "portforward", "", "SPDY/3.1", "/portForward/default/p?"},
		{http.MethodGet, "portforward", "ports=80", "websocket", "/portForward/default/p?port=80"},
	} {
		t.Run(test.subresource+" "+test.protocol[:4], func(t *testing.T) {
			res := k.open(t, test.method, podPath("p", test.subresource)+"?"+test.query, "", upgradeTo(test.protocol))
			defer res.Body.Close()
			if res.StatusCode != http.StatusSwitchingProtocols || res.Header.Get("Upgrade") != test.protocol {
				t.Fatalf("%s to %q", res.Status, res.Header.Get("Upgrade"))
			}
			echoes(t, res)
			asked := k.kubelet.asked()
			if len(asked) != 1 || asked[0].method != test.method || asked[0].path+"?"+asked[0].query != test.want {
				t.Errorf("kubelet asked %v, want %s", asked, test.want)
			}
		})
	}
}

// echoes checks that an upgraded connection reaches the backend and carries its answers
// back.
func echoes(t *testing.T, res *http.Response) {
	t.Helper()
	stream, ok := res.Body.(io.ReadWriter)
	if !ok {
		t.Fatalf("%T can't be written", res.Body)
	}
	reader := bufio.NewReader(stream)
	for _, line := range []string{"hello\n", strings.Repeat("m", 100_000) + "\n"} {
		if _, err := io.WriteString(stream, line); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if got, err := reader.ReadString('\n'); err != nil || got != line {
				t.Fatalf("got %d bytes for %d, %v", len(got), len(line), err)
			}
		}
	}
}

// TestKubelet_RefusesWhatIsNoStream: the server refuses a request without an upgrade, with
// another method, for a container or a node that does not exist, or from a user who may not
// run commands.
func TestKubelet_RefusesWhatIsNoStream(t *testing.T) {
	t.Parallel()
	k := startKubelets(t, func(c *registry.Config) { c.Authorizer = onlyReads(c.Authorizer) })
	k.addPod(t, "p", nodeName, "")
	k.addPod(t, "waiting", "", "")
	spdy := upgradeTo("SPDY/3.1")
	mallory := spdy.Clone()
	mallory.Set(userHeader, "mallory")
	for name, test := range map[string]struct {
		method, path string
		header       http.Header
		code         int
		want         string
	}{
		"no upgrade":     {http.MethodPost, podPath("p", "exec?container=c&command=x&stdout=1"), nil, http.StatusBadRequest, "Upgrade request required"},
		"another method": {http.MethodPut, podPath("p", "exec?container=c&command=x&stdout=1"), spdy, http.StatusMethodNotAllowed, ""},
		"no container":   {http.MethodPost, podPath("p", "exec?container=x&command=x&stdout=1"), spdy, http.StatusBadRequest, "container x is not valid"},
		"no node":        {http.MethodPost, podPath("waiting", "attach?container=c&stdout=1"), spdy, http.StatusBadRequest, "does not have a host assigned"},
		// The right to read the subresource does not include the right to run a command.
		"a right to read": {http.MethodGet, podPath("p", "exec?container=c&command=x&stdout=1"), mallory, http.StatusForbidden, "reads only"},
	} {
		got := k.ask(t, test.method, test.path, "", test.header)
		if got.code != test.code || !strings.Contains(got.body, test.want) {
			t.Errorf("%s: %d %s", name, got.code, got.body)
		}
	}
}

// TestKubelet_AnswersArePassedOn: the server passes a kubelet's answer on to the client and
// does not follow redirects.
func TestKubelet_AnswersArePassedOn(t *testing.T) {
	t.Parallel()
	k := startKubelets(t)
	k.addPod(t, "p", nodeName, "")
	away := newBackend(t)
	away.Start()
	redirect := func(w http.ResponseWriter, req *http.Request) { http.Redirect(w, req, away.URL, http.StatusFound) }
	refuse := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not today", http.StatusForbidden) }
	for name, test := range map[string]struct {
		kubelet     http.HandlerFunc
		subresource string
		code        int
		want        string
	}{
		"exec redirected":        {redirect, "exec?container=c&command=x&stdout=1", http.StatusInternalServerError, "invalid upgrade response: status code 302"},
		"portforward redirected": {redirect, "portforward", http.StatusInternalServerError, "invalid upgrade response: status code 302"},
		"log redirected":         {redirect, "log?container=c", http.StatusInternalServerError, "redirects forbidden"},
		"attach refused":         {refuse, "attach?container=c&stdout=1", http.StatusForbidden, "not today"},
		"log refused":            {refuse, "log?container=c", http.StatusForbidden, "not today"},
	} {
		k.kubelet.answerBy(test.kubelet)
		var header http.Header
		if !strings.HasPrefix(test.subresource, "log") {
			header = upgradeTo("SPDY/3.1")
		}
		got := k.ask(t, http.MethodGet, podPath("p", test.subresource), "", header)
		if got.code != test.code || !strings.Contains(got.body, test.want) {
			t.Errorf("%s: %d %s", name, got.code, got.body)
		}
	}
	if asked := away.asked(); len(asked) != 0 {
		t.Errorf("a redirect was followed: %v", asked)
	}
}

// onlyReads denies mallory the verb create.
func onlyReads(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetUser().GetName() == "mallory" && a.GetVerb() == "create" {
			return authorizer.DecisionDeny, "reads only", nil
		}
		return next.Authorize(ctx, a)
	})
}

// TestKubelet_IsTrustedByItsCertificate: the server verifies a kubelet's serving
// certificate, and connects to the preferred address and to the port in the Node's status.
func TestKubelet_IsTrustedByItsCertificate(t *testing.T) {
	t.Parallel()
	k := startKubelets(t)
	stranger := newBackend(t)
	stranger.StartTLS()
	k.network.lead("203.0.113.1:10250", stranger.Server)
	k.network.lead(externalIP+":4711", k.kubelet.Server)
	external := corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: externalIP}
	k.addNode(t, "other-port", 4711, external)
	k.addNode(t, "stranger", 0, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113.1"})
	// The kubelet's certificate does not cover this address.
	k.addNode(t, "internal", 0, corev1.NodeAddress{Type: corev1.NodeHostName, Address: internalIP})
	k.addNode(t, "unknown-type", 0, corev1.NodeAddress{Type: corev1.NodeInternalDNS, Address: nodeName})
	for _, test := range []struct {
		node, query string
		code        int
		want        string
	}{
		{nodeName, "", http.StatusOK, "answer to GET"},
		{"other-port", "", http.StatusOK, "answer to GET"},
		{"stranger", "", http.StatusInternalServerError, "failed to verify certificate"},
		{"stranger", "&insecureSkipTLSVerifyBackend=true", http.StatusOK, "answer to GET"},
		{"internal", "", http.StatusInternalServerError, "certificate is valid for " + externalIP},
		{"internal", "&insecureSkipTLSVerifyBackend=true", http.StatusOK, "answer to GET"},
		{"unknown-type", "", http.StatusInternalServerError, "no preferred addresses found"},
		{"no-such-node", "", http.StatusNotFound, "not found"},
	} {
		pod := "on-" + test.node
		if test.query != "" {
			pod = "insecure-" + test.node
		}
		k.addPod(t, pod, test.node, "")
		got := k.ask(t, http.MethodGet, podPath(pod, "log?container=c"+test.query), "", nil)
		if got.code != test.code || !strings.Contains(got.body, test.want) {
			t.Errorf("%s%s: %d %s", test.node, test.query, got.code, got.body)
		}
	}
}
