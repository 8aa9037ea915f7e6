package registry_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

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
	k.addService(t, "s", discoveryv1.Endpoint{Addresses: []string{podIP}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "p"}})
	return k, plain, secure
}

// addService creates a Service with the ports http and https and one endpoint.
func (k *kubelets) addService(t *testing.T, name string, endpoint discoveryv1.Endpoint) {
	t.Helper()
	_, err := k.client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
			{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}, {Name: "https", Port: 443, TargetPort: intstr.FromInt32(8443)},
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
			if len(asked) != 1 || asked[0].method != method || asked[0].path+"?"+asked[0].query != test.want || asked[0].body != body {
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
	for _, path := range []string{inDefault + "/pods/p/proxy", inDefault + "/services/s:http/proxy", "/api/v1/nodes/" + nodeName + "/proxy"} {
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
	if got := k.ask(t, http.MethodGet, "/api/v1/nodes/by-name/proxy/", "", nil); got.code != http.StatusBadRequest || !strings.Contains(got.body, refused) {
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
	if _, err := k.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{}); err != nil {
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
