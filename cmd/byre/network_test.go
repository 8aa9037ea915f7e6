package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/ptr"

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
		config += fmt.Sprintf("- {name: %s, connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %s}}}}\n",
			name, proxy.Addr())
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
		Spec: apiregistrationv1.APIServiceSpec{Group: "widgets.example", Version: "v1", GroupPriorityMinimum: 1,
			VersionPriority:       1,
			InsecureSkipTLSVerify: true, Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "aggregated"}},
	}
	if _, err := clientset.NewForConfigOrDie(server.config(t)).ApiregistrationV1().APIServices().Create(t.Context(),
		aggregated, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "all dialers are asked", func(ctx context.Context) (bool, error) {
		_, _ = client.CoreV1().ConfigMaps("default").Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "hooked-"}}, metav1.CreateOptions{})
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
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}}}
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
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address},
				Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		}
		if _, err := client.DiscoveryV1().EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	url := "https://192.0.2.10:443/"
	ignore, none := admissionregistrationv1.Ignore, admissionregistrationv1.SideEffectClassNone
	hook := func(name string,
		config admissionregistrationv1.WebhookClientConfig) admissionregistrationv1.ValidatingWebhook {
		return admissionregistrationv1.ValidatingWebhook{Name: name + ".example.com", ClientConfig: config,
			FailurePolicy: &ignore, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
					Resources: []string{"configmaps"}},
			}}}
	}
	hooks := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "hooks"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{
			hook("url", admissionregistrationv1.WebhookClientConfig{URL: &url}),
			hook("service",
				admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "default",
					Name: "hook"}}),
		}}
	if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, hooks,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return hookIP
}

// The server looks up the user of a token and the endpoints of a webhook in the store without a request: neither the
// audit log nor the metrics of requests have one.
func TestLookup_MakesNoRequests(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	server := startServer(t, dir, "--controllers=", "--enable-bootstrap-token-auth", "--audit-policy-file", policy,
		"--audit-log-path", log)
	t.Run("of tokens", func(t *testing.T) { testLookupOfTokens(t, server, log) })
	t.Run("of endpoints", func(t *testing.T) { testLookupOfEndpoints(t, server, log) })
}

// testLookupOfTokens has valid and invalid tokens looked up.
func testLookupOfTokens(t *testing.T, server *serverProcess, log string) {
	config := server.config(t)
	client := kubernetes.NewForConfigOrDie(config)
	core := client.CoreV1()
	account, err := core.ServiceAccounts("default").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{"token-id": "abcdef", "token-secret": "0123456789abcdef",
			"usage-bootstrap-authentication": "true"},
	}
	if _, err := core.Secrets("kube-system").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bound, err := core.Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bound"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token, err := core.ServiceAccounts("default").CreateToken(t.Context(), account.Name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: bound.Name,
				UID: bound.UID},
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
	counted := regexp.MustCompile(fmt.Sprintf(`(?m)^apiserver_request_total\{.*resource="(%s)".*verb="%s".*$`, resources,
		strings.ToUpper(verb)))
	for _, line := range counted.FindAllString(text, -1) {
		t.Errorf("in the metrics of requests: %s", line)
	}
	logged := regexp.MustCompile(fmt.Sprintf(`(?m)^.*"verb":"%s".*"resource":"(%s)".*$`, verb, resources))
	for _, line := range logged.FindAllString(string(events), -1) {
		t.Errorf("in the audit log: %s", line)
	}
}

// testLookupOfEndpoints: a webhook's Service resolves to its endpoints, as an aggregated server's does: the
// cluster IP leads nowhere here.
func testLookupOfEndpoints(t *testing.T, server *serverProcess, log string) {
	host := ownAddress(t)
	chain, key, err := cert.GenerateSelfSignedCertKey("hooks.default.svc", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	hooks := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "not a review", http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID,
			Result: &metav1.Status{Message: "refused at the endpoint"}}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	if err := hooks.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	if hooks.Listener, err = net.Listen("tcp", net.JoinHostPort(host, "0")); err != nil {
		t.Fatal(err)
	}
	hooks.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	hooks.StartTLS()
	t.Cleanup(hooks.Close)
	_, text, err := net.SplitHostPort(hooks.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}

	client := kubernetes.NewForConfigOrDie(server.config(t))
	if _, err := client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "hooks"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "hooks-1", Labels: map[string]string{discoveryv1.LabelServiceName: "hooks"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{host}}},
		Ports:       []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(port))}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(),
		&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "hooks"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name: "hooks.example.com",
				ClientConfig: admissionregistrationv1.WebhookClientConfig{
					Service: &admissionregistrationv1.ServiceReference{Namespace: "default", Name: "hooks"}, CABundle: chain,
				},
				Rules: []admissionregistrationv1.RuleWithOperations{{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
						Resources: []string{"configmaps"}},
				}},
				SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
				AdmissionReviewVersions: []string{"v1"},
				TimeoutSeconds:          new(int32(30)), // the longest: a busy machine takes some of it
			}},
		}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for {
		_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"}}, metav1.CreateOptions{})
		if err == nil {
			continue // the server has not seen the configuration yet
		}
		if !strings.Contains(err.Error(), "refused at the endpoint") {
			t.Error(err)
		}
		break
	}
	expectNoRequests(t, server, log, "list", "endpointslices")
}

// ownAddress is an address of this machine that endpoints may have: no loopback address.
func ownAddress(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		if ip, ok := address.(*net.IPNet); ok && ip.IP.To4() != nil && ip.IP.IsGlobalUnicast() {
			return ip.IP.String()
		}
	}
	t.Fatal("this machine has no address but loopback")
	return ""
}
