package registry_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
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
	b.requests = append(b.requests, backendRequest{req.Method, req.URL.EscapedPath(), req.URL.RawQuery, string(body), req.Header})
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
	if !say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + req.Header.Get("Upgrade") + "\r\n\r\n") {
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
