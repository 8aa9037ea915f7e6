package registry_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/server/egressselector"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"

	"byre/apiserver/process/pki"
	"byre/apiserver/registry"
)

// network maps addresses, most of which belong to no machine, to the test's own
// servers, because the proxies refuse the loopback addresses that these servers listen
// on.
type network struct {
	mu    sync.Mutex
	hosts map[string]string // from host:port to host:port
}

func (n *network) lead(address string, to *httptest.Server) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hosts == nil {
		n.hosts = map[string]string{}
	}
	n.hosts[address] = to.Listener.Addr().String()
}

func (n *network) dial(ctx context.Context, protocol, address string) (net.Conn, error) {
	n.mu.Lock()
	to, ok := n.hosts[address]
	n.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("no server of the test has the address %s", address)
	}
	return new(net.Dialer).DialContext(ctx, protocol, to)
}

// backendRequest is a request that a backend received.
type backendRequest struct {
	method, path, query, body string
	header                    http.Header
}

// backend is a server that records its requests. It accepts an upgrade to any protocol and
// then repeats each line twice.
type backend struct {
	*httptest.Server
	mu       sync.Mutex
	requests []backendRequest
	instead  http.HandlerFunc // answers in place of the default handler, unless nil
}

// answerBy makes h answer the backend's requests.
func (b *backend) answerBy(h http.HandlerFunc) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.instead = h
}

func newBackend(t *testing.T) *backend {
	b := &backend{}
	b.Server = httptest.NewUnstartedServer(b)
	t.Cleanup(func() { b.Close() })
	return b
}

func (b *backend) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	b.mu.Lock()
	b.requests = append(b.requests,
		backendRequest{req.Method, req.URL.EscapedPath(), req.URL.RawQuery, string(body), req.Header})
	instead := b.instead
	b.mu.Unlock()
	switch {
	case instead != nil:
		instead(w, req)
	case req.Header.Get("Upgrade") != "":
		answerTwice(w, req)
	default:
		w.Header().Set("X-Backend", "here")
		_, _ = fmt.Fprintf(w, "answer to %s", req.Method) // the client may be gone
	}
}

// answerTwice accepts the upgrade and answers each line with the line twice.
func answerTwice(w http.ResponseWriter, req *http.Request) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	say := func(text string) bool {
		_, err := io.WriteString(conn, text)
		return err == nil
	}
	if !say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + req.Header.Get("Upgrade") +
		"\r\n\r\n") {
		return
	}
	for {
		line, err := buffered.ReadString('\n')
		if err != nil || !say(line+line) {
			return
		}
	}
}

// asked returns the requests that the backend has received since the last call.
func (b *backend) asked() []backendRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	asked := b.requests
	b.requests = nil
	return asked
}

const (
	nodeName   = "node.test"
	internalIP = "192.0.2.10"
	externalIP = "198.51.100.10"
)

// kubelets is a server and a kubelet that it can reach.
type kubelets struct {
	*server
	network *network
	kubelet *backend
	// url is the API's address, for requests that end in a stream and cannot use the typed
	// clients.
	url string
}

// startKubelets starts a server with one Node. The Node's kubelet has a certificate for its
// external address and its name, and requires a client certificate of the server's CA.
func startKubelets(t *testing.T, adjust ...func(*registry.Config)) *kubelets {
	t.Helper()
	k := &kubelets{network: &network{}, kubelet: newBackend(t)}
	ours, theirs := authority(t), authority(t, nodeName, externalIP)
	certificate, err := tls.LoadX509KeyPair(theirs.ServingCert, theirs.ServingKey)
	if err != nil {
		t.Fatal(err)
	}
	k.kubelet.TLS = &tls.Config{
		Certificates: []tls.Certificate{certificate},
		ClientCAs:    pool(t, ours.CACert), ClientAuth: tls.RequireAndVerifyClientCert,
	}
	k.kubelet.StartTLS()
	for _, host := range []string{nodeName, internalIP, externalIP} {
		k.network.lead(net.JoinHostPort(host, "10250"), k.kubelet.Server)
	}
	config := registry.DefaultKubelet()
	config.PreferredAddressTypes = []string{string(corev1.NodeExternalIP), string(corev1.NodeHostName)}
	config.TLSClientConfig = kubeletclient.KubeletTLSConfig{
		CertFile: ours.KubeletClientCert, KeyFile: ours.KubeletKey, CAFile: theirs.CACert,
	}
	config.Lookup = func(egressselector.NetworkContext) (utilnet.DialFunc, error) { return k.network.dial, nil }
	k.server = start(t, append([]func(*registry.Config){func(c *registry.Config) {
		c.Kubelet = config
		c.ProxyTransport = &http.Transport{
			DialContext:     k.network.dial,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		}
	}}, adjust...)...)
	k.addNode(t, nodeName, 0,
		corev1.NodeAddress{Type: corev1.NodeHostName, Address: nodeName},
		corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: internalIP},
		corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: externalIP})
	listening := httptest.NewServer(k.api)
	t.Cleanup(listening.Close)
	k.url = listening.URL
	return k
}

func authority(t *testing.T, hosts ...string) pki.Files {
	t.Helper()
	files, _, err := pki.Ensure(pki.Config{Dir: t.TempDir(), Hosts: hosts, Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func pool(t *testing.T, path string) *x509.CertPool {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(data)
	return pool
}

// addNode creates a Node with the addresses in its status; port 0 leaves the kubelet's port
// out.
func (k *kubelets) addNode(t *testing.T, name string, port int32, addresses ...corev1.NodeAddress) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	node.Status.Addresses = addresses
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = port
	if _, err := k.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// addPod creates a Pod with two containers, on a node and with an address; either may be
// empty.
func (k *kubelets) addPod(t *testing.T, name, node, ip string) {
	t.Helper()
	pods := k.client.CoreV1().Pods("default")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pod.Spec.NodeName = node
	pod.Spec.Containers = []corev1.Container{
		{Name: "c", Image: "i", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}, {Name: "d", Image: "i"},
	}
	pod, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ip == "" {
		return
	}
	pod.Status.PodIP = ip
	pod.Status.PodIPs = []corev1.PodIP{{IP: ip}}
	if _, err := pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

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
		"no upgrade": {http.MethodPost, podPath("p", "exec?container=c&command=x&stdout=1"), nil, http.StatusBadRequest,
			"Upgrade request required"},
		"another method": {http.MethodPut, podPath("p", "exec?container=c&command=x&stdout=1"), spdy,
			http.StatusMethodNotAllowed, ""},
		"no container": {http.MethodPost, podPath("p", "exec?container=x&command=x&stdout=1"), spdy, http.StatusBadRequest,
			"container x is not valid"},
		"no node": {http.MethodPost, podPath("waiting", "attach?container=c&stdout=1"), spdy, http.StatusBadRequest,
			"does not have a host assigned"},
		// The right to read the subresource does not include the right to run a command.
		"a right to read": {http.MethodGet, podPath("p", "exec?container=c&command=x&stdout=1"), mallory,
			http.StatusForbidden, "reads only"},
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
		"exec redirected": {redirect, "exec?container=c&command=x&stdout=1", http.StatusInternalServerError,
			"invalid upgrade response: status code 302"},
		"portforward redirected": {redirect, "portforward", http.StatusInternalServerError,
			"invalid upgrade response: status code 302"},
		"log redirected": {redirect, "log?container=c", http.StatusInternalServerError, "redirects forbidden"},
		"attach refused": {refuse, "attach?container=c&stdout=1", http.StatusForbidden, "not today"},
		"log refused":    {refuse, "log?container=c", http.StatusForbidden, "not today"},
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
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string,
		error) {
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

const (
	podIP   = "192.0.2.20"
	podIPv6 = "2001:db8::20"
)

// startProxies starts a server with a Pod behind a Service. The Service has a plain and a
// TLS port; both backends are reachable as Pod, Service and Node.
func startProxies(t *testing.T) (k *kubelets, plain, secure *backend) {
	t.Helper()
	k, plain, secure = startKubelets(t), newBackend(t), newBackend(t)
	plain.Start()
	secure.StartTLS()
	k.addPod(t, "p", nodeName, podIP)
	k.addPod(t, "six", nodeName, podIPv6)
	k.network.lead(podIP+":8080", plain.Server)
	k.network.lead("["+podIPv6+"]:8080", plain.Server)
	k.network.lead(podIP+":8443", secure.Server)
	k.network.lead(externalIP+":8080", plain.Server)
	k.network.lead(externalIP+":8443", secure.Server)
	k.addService(t, "s",
		discoveryv1.Endpoint{Addresses: []string{podIP},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "p"}})
	return k, plain, secure
}

// addService creates a Service with the ports http and https and one endpoint.
func (k *kubelets) addService(t *testing.T, name string, endpoint discoveryv1.Endpoint) {
	t.Helper()
	_, err := k.client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
			{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)},
			{Name: "https", Port: 443, TargetPort: intstr.FromInt32(8443)},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = k.client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{endpoint},
		Ports: []discoveryv1.EndpointPort{
			{Name: new("http"), Port: new(int32(8080))}, {Name: new("https"), Port: new(int32(8443))},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

const inDefault = "/api/v1/namespaces/default"

// TestProxy_ReachesNodesPodsAndServices: the proxy reaches nodes, pods and services with
// every method and path.
func TestProxy_ReachesNodesPodsAndServices(t *testing.T) {
	t.Parallel()
	k, plain, secure := startProxies(t)
	for _, test := range []struct {
		path string
		to   *backend
		want string // the path and query that the backend gets
	}{
		{inDefault + "/pods/p/proxy/a/b?c=d", plain, "/a/b?c=d"},
		{inDefault + "/pods/p:8080/proxy/", plain, "/?"},
		{inDefault + "/pods/http:p:8080/proxy/a/", plain, "/a/?"},
		{inDefault + "/pods/https:p:8443/proxy/a", secure, "/a?"},
		{inDefault + "/pods/six/proxy/a", plain, "/a?"},
		{inDefault + "/services/s:http/proxy/a", plain, "/a?"},
		{inDefault + "/services/s:80/proxy/a", plain, "/a?"},
		{inDefault + "/services/https:s:https/proxy/a", secure, "/a?"},
		{inDefault + "/services/https:s:443/proxy/a?x=y&x=z", secure, "/a?x=y&x=z"},
		{"/api/v1/nodes/" + nodeName + "/proxy/metrics/cadvisor", k.kubelet, "/metrics/cadvisor?"},
		{"/api/v1/nodes/" + nodeName + ":10250/proxy/pods", k.kubelet, "/pods?"},
		{"/api/v1/nodes/http:" + nodeName + ":8080/proxy/a", plain, "/a?"},
		{"/api/v1/nodes/https:" + nodeName + ":8443/proxy/a", secure, "/a?"},
	} {
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"} {
			body := "body of " + method
			got := k.ask(t, method, test.path, body, http.Header{"X-Client": {"mine"}})
			want := "answer to " + method
			if method == http.MethodHead {
				want = ""
			}
			if got.code != http.StatusOK || got.body != want || got.header.Get("X-Backend") != "here" {
				t.Errorf("%s %s: %d %s", method, test.path, got.code, got.body)
				continue
			}
			asked := test.to.asked()
			if len(asked) != 1 || asked[0].method != method || asked[0].path+"?"+asked[0].query != test.want ||
				asked[0].body != body {
				t.Errorf("%s %s: the backend was asked %v", method, test.path, asked)
				continue
			}
			path, _, _ := strings.Cut(test.path, "?")
			header := asked[0].header
			if header.Get("X-Client") != "mine" || header.Get("X-Forwarded-Uri") != path || header.Get("X-Forwarded-For") == "" {
				t.Errorf("%s %s: the backend saw %v", method, test.path, header)
			}
		}
		res := k.open(t, http.MethodGet, test.path, "", upgradeTo("websocket"))
		if res.StatusCode != http.StatusSwitchingProtocols {
			t.Errorf("upgrade of %s: %s", test.path, res.Status)
		} else {
			echoes(t, res)
		}
		res.Body.Close()
		test.to.asked()
	}
}

// TestProxy_RedirectsItsRoot: a proxy path without a final slash redirects to the one with
// it, so that relative links work.
func TestProxy_RedirectsItsRoot(t *testing.T) {
	t.Parallel()
	k, _, _ := startProxies(t)
	for _, path := range []string{inDefault + "/pods/p/proxy", inDefault + "/services/s:http/proxy",
		"/api/v1/nodes/" + nodeName + "/proxy"} {
		got := k.ask(t, http.MethodGet, path+"?a=b", "", nil)
		if got.code != http.StatusMovedPermanently || got.header.Get("Location") != path+"/?a=b" {
			t.Errorf("%s: %d to %s", path, got.code, got.header.Get("Location"))
		}
	}
}

// TestProxy_LeavesRedirectsToTheClient: the proxy does not follow a backend's redirects. It
// rewrites those that stay at the backend to lead through the proxy.
func TestProxy_LeavesRedirectsToTheClient(t *testing.T) {
	t.Parallel()
	k, plain, _ := startProxies(t)
	away := newBackend(t)
	away.Start()
	const proxy = inDefault + "/services/s:http/proxy"
	for to, want := range map[string]string{
		"/elsewhere":                       proxy + "/elsewhere",
		"http://" + podIP + ":8080/closer": proxy + "/closer",
		away.URL + "/secret":               away.URL + "/secret",
	} {
		plain.answerBy(func(w http.ResponseWriter, req *http.Request) { http.Redirect(w, req, to, http.StatusFound) })
		got := k.ask(t, http.MethodGet, proxy+"/here", "", nil)
		if location := got.header.Get("Location"); got.code != http.StatusFound || !strings.HasSuffix(location, want) {
			t.Errorf("to %s: %d to %s", to, got.code, location)
		}
		upgraded := k.ask(t, http.MethodGet, proxy+"/here", "", upgradeTo("websocket"))
		if upgraded.code != http.StatusInternalServerError || !strings.Contains(upgraded.body, "status code 302") {
			t.Errorf("upgrade to %s: %d %s", to, upgraded.code, upgraded.body)
		}
	}
	if asked := away.asked(); len(asked) != 0 {
		t.Errorf("a redirect was followed: %v", asked)
	}
}

// TestProxy_RefusesLocalAddresses: the proxy connects to no loopback or link-local address,
// nor to an address that is no Pod's.
func TestProxy_RefusesLocalAddresses(t *testing.T) {
	t.Parallel()
	k, _, _ := startProxies(t)
	const refused = "address not allowed"
	for name, ip := range map[string]string{
		"loopback": "127.0.0.1", "other-loopback": "127.1.2.3", "loopback-6": "::1",
		"link-local": "169.254.169.254", "link-local-6": "fe80::1", "multicast": "224.0.0.1", "multicast-6": "ff02::1",
		"unspecified": "0.0.0.0", "unspecified-6": "::", "no-address": "",
	} {
		k.addPod(t, name, nodeName, ip)
		got := k.ask(t, http.MethodGet, inDefault+"/pods/"+name+":8080/proxy/", "", nil)
		if got.code != http.StatusBadRequest || !strings.Contains(got.body, refused) {
			t.Errorf("pod at %q: %d %s", ip, got.code, got.body)
		}
		if ip == "" {
			continue
		}
		k.addNode(t, name, 0, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: ip})
		for _, port := range []string{"", ":8080"} {
			got := k.ask(t, http.MethodGet, "/api/v1/nodes/"+name+port+"/proxy/", "", nil)
			if got.code != http.StatusBadRequest || !strings.Contains(got.body, refused) {
				t.Errorf("node at %s, port %q: %d %s", ip, port, got.code, got.body)
			}
		}
	}
	k.addNode(t, "by-name", 0, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "localhost"})
	if got := k.ask(t, http.MethodGet, "/api/v1/nodes/by-name/proxy/", "", nil); got.code != http.StatusBadRequest ||
		!strings.Contains(got.body, refused) {
		t.Errorf("node at localhost: %d %s", got.code, got.body)
	}
}

// TestProxy_RefusesEndpointsThatAreNoPods: the proxy connects to an endpoint only if a Pod
// of the Service's namespace has its address, whoever wrote the endpoint.
func TestProxy_RefusesEndpointsThatAreNoPods(t *testing.T) {
	t.Parallel()
	k, plain, _ := startProxies(t)
	const foreign = "192.0.2.99"
	k.network.lead(foreign+":8080", plain.Server)
	if _, err := k.client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := func(namespace, name string) *corev1.ObjectReference {
		return &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: name}
	}
	for name, address := range map[string]discoveryv1.Endpoint{
		"no-pod":            {Addresses: []string{foreign}},
		"another-address":   {Addresses: []string{foreign}, TargetRef: pod("default", "p")},
		"another-namespace": {Addresses: []string{podIP}, TargetRef: pod("other", "p")},
		"a-pod-that-left":   {Addresses: []string{podIP}, TargetRef: pod("default", "gone")},
	} {
		k.addService(t, name, address)
		got := k.ask(t, http.MethodGet, inDefault+"/services/"+name+":http/proxy/", "", nil)
		if got.code != http.StatusServiceUnavailable || !strings.Contains(got.body, "no endpoints available for service") {
			t.Errorf("%s: %d %s", name, got.code, got.body)
		}
	}
	if asked := plain.asked(); len(asked) != 0 {
		t.Errorf("the backend was asked %v", asked)
	}
}

// TestProxy_ReportsUnreachableBackends: missing objects and backends that do not answer
// have upstream's status.
func TestProxy_ReportsUnreachableBackends(t *testing.T) {
	t.Parallel()
	k, _, _ := startProxies(t)
	k.addPod(t, "silent", nodeName, "192.0.2.21")
	for path, want := range map[string]int{
		inDefault + "/pods/gone/proxy/":           http.StatusNotFound,
		inDefault + "/pods/ftp:p:8080/proxy/":     http.StatusBadRequest,
		inDefault + "/services/gone:http/proxy/":  http.StatusServiceUnavailable,
		inDefault + "/services/s:81/proxy/":       http.StatusServiceUnavailable,
		inDefault + "/services/s:ftp/proxy/":      http.StatusServiceUnavailable,
		"/api/v1/nodes/gone/proxy/":               http.StatusNotFound,
		inDefault + "/pods/silent/proxy/":         http.StatusServiceUnavailable,
		inDefault + "/pods/http:p:8443/proxy/":    http.StatusBadRequest, // the port does not speak TLS
		inDefault + "/pods/https:p:8080/proxy/":   http.StatusServiceUnavailable,
		"/api/v1/nodes/" + nodeName + ":81/proxy": http.StatusServiceUnavailable,
	} {
		if got := k.ask(t, http.MethodPost, path, "", nil); got.code != want {
			t.Errorf("%s: %d %s", path, got.code, got.body)
		}
	}
}

// TestProxy_BrokenAnswerIsNotComplete: the client gets an error when the backend's answer
// ends early.
func TestProxy_BrokenAnswerIsNotComplete(t *testing.T) {
	t.Parallel()
	k, plain, _ := startProxies(t)
	plain.answerBy(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte("half"))
		panic(http.ErrAbortHandler)
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, k.url+inDefault+"/pods/p/proxy/", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return // the server had sent nothing of it yet
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); err == nil && res.StatusCode < http.StatusInternalServerError {
		t.Errorf("half an answer arrives as %s %q", res.Status, text)
	}
}
