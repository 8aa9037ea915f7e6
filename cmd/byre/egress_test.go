package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"byre/sqlstore/storetest"
)

// refusingProxy is an egress proxy that records the addresses it is asked to connect to,
// and refuses to.
type refusingProxy struct {
	net.Listener
	mu    sync.Mutex
	asked []string
}

func newRefusingProxy(t *testing.T) *refusingProxy {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(t.TempDir(), "proxy"))
	if err != nil {
		t.Fatal(err)
	}
	p := &refusingProxy{Listener: listener}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { p.answer(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close() // Close ends the serving goroutine
		serving.Wait()
	})
	return p
}

func (p *refusingProxy) answer(conn net.Conn) {
	defer conn.Close()
	request, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil || request.Method != http.MethodConnect {
		return
	}
	p.mu.Lock()
	p.asked = append(p.asked, request.Host)
	p.mu.Unlock()
	fmt.Fprint(conn, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
}

func (p *refusingProxy) wasAsked(host string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.asked, host)
}

// TestEgressSelector_RoutesThroughTheProxy: connections to nodes, aggregated servers and
// webhooks with a Service go through the proxy for "cluster"; connections to webhooks with
// a URL go through the one for "controlplane".
func TestEgressSelector_RoutesThroughTheProxy(t *testing.T) {
	t.Parallel()
	cluster, controlPlane := newRefusingProxy(t), newRefusingProxy(t)
	file := filepath.Join(t.TempDir(), "egress.yaml")
	config := "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n"
	for name, proxy := range map[string]*refusingProxy{"cluster": cluster, "controlplane": controlPlane} {
		config += fmt.Sprintf("- {name: %s, connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %s}}}}\n", name, proxy.Addr())
	}
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	server := startServer(t, t.TempDir(), "--egress-selector-config-file", file)
	client := kubernetes.NewForConfigOrDie(server.config(t))
	hookIP := makeUnreachable(t, client)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("asked for: in the cluster %v, of the control plane %v", cluster.asked, controlPlane.asked)
		}
	})
	aggregated := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.widgets.example"},
		Spec: apiregistrationv1.APIServiceSpec{Group: "widgets.example", Version: "v1", GroupPriorityMinimum: 1, VersionPriority: 1,
			InsecureSkipTLSVerify: true, Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "aggregated"}},
	}
	if _, err := clientset.NewForConfigOrDie(server.config(t)).ApiregistrationV1().APIServices().Create(t.Context(), aggregated, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "all dialers are asked", func(ctx context.Context) (bool, error) {
		_, _ = client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "hooked-"}}, metav1.CreateOptions{})
		_, _ = client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/n/proxy/healthz").DoRaw(ctx)
		return controlPlane.wasAsked("192.0.2.10:443") && cluster.wasAsked("192.0.2.20:10250") &&
			cluster.wasAsked("192.0.2.30:443") && (cluster.wasAsked("192.0.2.40:443") || cluster.wasAsked(hookIP+":443")), nil
	})
	if cluster.wasAsked("192.0.2.10:443") {
		t.Error("the webhook by URL was looked for in the cluster")
	}
}

// makeUnreachable creates a node, two Services with endpoints, and two webhooks, all with
// addresses of the documentation range. It returns the cluster IP of the webhook that has a
// Service.
func makeUnreachable(t *testing.T, client kubernetes.Interface) (hookIP string) {
	t.Helper()
	ctx := t.Context()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.20"}}}}
	if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, address := range map[string]string{"aggregated": "192.0.2.30", "hook": "192.0.2.40"} {
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}}}
		made, err := client.CoreV1().Services("default").Create(ctx, service, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if name == "hook" {
			hookIP = made.Spec.ClusterIP
		}
		https, port, ready := "https", int32(443), true
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: &https, Port: &port}},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		}
		if _, err := client.DiscoveryV1().EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	url := "https://192.0.2.10:443/"
	ignore, none := registrationv1.Ignore, registrationv1.SideEffectClassNone
	hook := func(name string, config registrationv1.WebhookClientConfig) registrationv1.ValidatingWebhook {
		return registrationv1.ValidatingWebhook{Name: name + ".example.com", ClientConfig: config,
			FailurePolicy: &ignore, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			Rules: []registrationv1.RuleWithOperations{{
				Operations: []registrationv1.OperationType{registrationv1.Create},
				Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}}}
	}
	hooks := &registrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "hooks"}, Webhooks: []registrationv1.ValidatingWebhook{
		hook("url", registrationv1.WebhookClientConfig{URL: &url}),
		hook("service", registrationv1.WebhookClientConfig{Service: &registrationv1.ServiceReference{Namespace: "default", Name: "hook"}}),
	}}
	if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, hooks, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return hookIP
}
