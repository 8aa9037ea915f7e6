package aggregator_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"byre/sqlstore/storetest"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	a := &authority{cert: template(name)}
	a.cert.IsCA, a.cert.BasicConstraintsValid = true, true
	a.cert.KeyUsage = x509.KeyUsageCertSign
	a.key, a.pem = sign(t, a.cert, a.cert, nil)
	block, _ := pem.Decode(a.pem)
	var err error
	if a.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		t.Fatal(err)
	}
	return a
}

// issue makes a certificate for a client and server of that name, as PEM.
func (a *authority) issue(t testing.TB, name string, dns ...string) (cert, key []byte) {
	t.Helper()
	leaf := template(name)
	leaf.DNSNames = dns
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	private, cert := sign(t, leaf, a.cert, a.key)
	der, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
	}
}

// sign makes a key and a certificate for it. The signer signs the certificate; without a
// signer it is self-signed.
func sign(t testing.TB, cert, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// backend is another API server. The Service that leads to it has its name, in the
// namespace "backends".
type backend struct {
	*httptest.Server
	name string
	ca   *authority
	at   net.Addr // the address of the Service's endpoint; the server's where nil
}

const namespace = "backends"

// newBackend serves handler behind a Service of the name, over HTTP/2 or HTTP/1.1. change
// may adjust the server before it starts.
func newBackend(t testing.TB, s *server, name string, handler http.Handler, change ...func(*backend)) *backend {
	t.Helper()
	b := &backend{Server: httptest.NewUnstartedServer(handler), name: name, ca: newAuthority(t, name+"-ca")}
	pair, err := tls.X509KeyPair(b.ca.issue(t, name, name+"."+namespace+".svc"))
	if err != nil {
		t.Fatal(err)
	}
	frontProxies := x509.NewCertPool()
	frontProxies.AddCert(s.frontProxyCA.cert)
	b.TLS = &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{pair},
		ClientAuth:   tls.VerifyClientCertIfGiven,
		ClientCAs:    frontProxies,
	}
	b.EnableHTTP2 = true
	b.Config.ErrorLog = log.New(io.Discard, "", 0)
	for _, c := range change {
		c(b)
	}
	if b.TLS != nil {
		b.StartTLS()
	} else {
		b.Start()
	}
	t.Cleanup(func() {
		b.CloseClientConnections()
		b.Close()
	})
	if b.at == nil {
		b.at = b.Listener.Addr()
	}
	s.service(t, name, b.at)
	return b
}

// unserved returns an address that refuses connections until the test ends: that of a
// client's connection, whose port no other program can listen on meanwhile.
func unserved(t testing.TB) net.Addr {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.LocalAddr()
}

// service makes a Service with an endpoint at an address.
func (s *server) service(t testing.TB, name string, at net.Addr) {
	t.Helper()
	host, text, err := net.SplitHostPort(at.String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	port, portName := int32(number), "https"
	_, err = s.cluster.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.ServiceSpec{
			Type:      corev1.ServiceTypeClusterIP,
			ClusterIP: "192.0.2.1", // an address that leads nowhere
			Ports:     []corev1.ServicePort{{Name: portName, Port: 443}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.cluster.DiscoveryV1().EndpointSlices(namespace).Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-1", Namespace: namespace,
			Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{host}}},
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// endpoints makes the one endpoint of a Service ready or not.
func (s *server) endpoints(t testing.TB, name string, ready bool) {
	t.Helper()
	slices := s.cluster.DiscoveryV1().EndpointSlices(namespace)
	slice, err := slices.Get(t.Context(), name+"-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slice.Endpoints[0].Conditions.Ready = &ready
	if _, err := slices.Update(t.Context(), slice, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// register registers a version of the group <service>.example.com with the backend.
func (b *backend) register(
	t testing.TB, s *server, version string, change ...func(*apiregistrationv1.APIServiceSpec),
) string {
	t.Helper()
	service := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: version + "." + b.group()},
		Spec: apiregistrationv1.APIServiceSpec{
			Service:              &apiregistrationv1.ServiceReference{Namespace: namespace, Name: b.name},
			Group:                b.group(),
			Version:              version,
			CABundle:             b.ca.pem,
			GroupPriorityMinimum: 1000,
			VersionPriority:      10,
		},
	}
	for _, c := range change {
		c(&service.Spec)
	}
	if _, err := s.services.Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if service.Spec.Service != nil { // the first such APIService starts the watch
		s.awaitWatch(t, "endpointslices")
	}
	return service.Name
}

func (b *backend) group() string { return b.name + ".example.com" }

// available registers version v1 for the backend and waits until it is served.
func (b *backend) available(t testing.TB, s *server) {
	t.Helper()
	s.condition(t, b.register(t, s, "v1"), apiregistrationv1.ConditionTrue, "Passed")
	b.served(t, s, "v1")
}

// served waits until a version of the backend is available and the server under test has
// seen that condition.
func (b *backend) served(t testing.TB, s *server, version string) {
	t.Helper()
	s.awaitStatus(t, s.front.URL+"/apis/"+b.group()+"/"+version, http.StatusOK)
}

func (b *backend) url(s *server, path string) string {
	return s.front.URL + "/apis/" + b.group() + "/v1" + path
}

// api is a handler of a backend: discovery documents, and routes below its v1.
type api struct {
	http.ServeMux
	group string
}

func newAPI(name string) *api {
	a := &api{group: name + ".example.com"}
	a.HandleFunc("/apis/"+a.group+"/{version}", func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: a.group + "/" + req.PathValue("version"),
			APIResources: []metav1.APIResource{{Name: "widgets", SingularName: "widget", Kind: "Widget",
				Verbs: metav1.Verbs{"get", "list"}}},
		})
	})
	return a
}

// serve adds a route below v1.
func (a *api) serve(path string, handler http.HandlerFunc) *api {
	a.HandleFunc(fmt.Sprintf("/apis/%s/v1%s", a.group, path), handler)
	return a
}

// http1 makes a backend speak HTTP/1.1, as handlers that take over the connection need it.
func http1(b *backend) { b.EnableHTTP2 = false }

// raw takes over the connection, writes the parts to it, and closes it.
func raw(parts ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		for _, part := range parts {
			if _, err := io.WriteString(conn, part); err != nil {
				return
			}
		}
	}
}

// endlessHeader answers with a header that does not end.
func endlessHeader(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	line := "X-More: " + strings.Repeat("m", 64<<10) + "\r\n"
	_, err = io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
	for err == nil {
		_, err = io.WriteString(conn, line)
	}
}

func redirect(w http.ResponseWriter, req *http.Request) {
	http.Redirect(w, req, "https://elsewhere.example.com/", http.StatusFound)
}

func hang(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }

// TestAvailability_FalseForABackendWithoutDiscovery: a backend whose discovery document
// cannot be read is unavailable, with upstream's reason and a message that gives the cause.
// Only its own paths answer 503. It does not delay or break the discovery of other groups.
func TestAvailability_FalseForABackendWithoutDiscovery(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	s := start(t)
	good := newBackend(t, s, "good", newAPI("good").serve("/widgets", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello")
	}))
	other := newAuthority(t, "another-ca")
	for _, bad := range []struct {
		name    string
		handler http.Handler
		change  func(*backend)
		want    string
	}{
		{"certificate", newAPI("certificate"), func(b *backend) { b.ca = other }, "certificate signed by unknown authority"},
		{"name", newAPI("name"), func(b *backend) {
			b.useCertificate(t, "else.backends.svc")
		}, "certificate is valid for else.backends.svc, not name.backends.svc"},
		{"plain", newAPI("plain"), func(b *backend) { b.TLS = nil }, "server gave HTTP response to HTTPS client"},
		// The fetch ends at the limit of bytes or, on a busy machine, at the limit of time.
		{"header", http.HandlerFunc(endlessHeader), http1, "exceeded"},
		{"half", raw("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n"), http1, "unexpected EOF"},
		{"switch", raw("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: hello\r\n\r\n"), http1,
			"bad status from https://SERVER/apis/switch.example.com/v1: 101"},
		{"redirect", http.HandlerFunc(redirect), http1, "bad status from https://SERVER/apis/redirect.example.com/v1: 302"},
		{"failing", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no", http.StatusInternalServerError)
		}), http1, "bad status from https://SERVER/apis/failing.example.com/v1: 500"},
		{"gone", newAPI("gone"), func(b *backend) { b.at = unserved(t) }, "connection refused"},
	} {
		b := newBackend(t, s, bad.name, bad.handler, bad.change)
		name := b.register(t, s, "v1")
		t.Run(bad.name, func(t *testing.T) {
			message := s.condition(t, name, apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck")
			message = strings.ReplaceAll(message, b.Listener.Addr().String(), "SERVER")
			if !strings.Contains(message, bad.want) {
				t.Errorf("message %q, want %q in it", message, bad.want)
			}
			// The condition may be set before the server has seen the APIService.
			s.awaitStatus(t, b.url(s, ""), http.StatusServiceUnavailable)
			for _, path := range []string{"", "/", "/widgets", "/namespaces/a/widgets/b"} {
				if status, body, _ := get(t, b.url(s, path)); status != http.StatusServiceUnavailable ||
					body != "service unavailable\n" {
					t.Errorf("%q: %d %s", path, status, body)
				}
			}
			s.awaitFreshness(t, b.group(), apidiscoveryv2.DiscoveryFreshnessStale)
		})
	}
	good.available(t, s)
	if status, body, _ := get(t, good.url(s, "/widgets")); status != http.StatusOK || body != "hello" {
		t.Errorf("the good one: %d %s", status, body)
	}
	s.awaitFreshness(t, good.group(), apidiscoveryv2.DiscoveryFreshnessCurrent)
}

// TestBackend_ThatIsSlowDelaysOnlyItsOwnClients: only the clients of a slow backend wait
// for it.
func TestBackend_ThatIsSlowDelaysOnlyItsOwnClients(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	s := start(t)
	// If the good one waited for all of these in turn, it would wait for longer than eventually does.
	for i := range 13 {
		slow := newBackend(t, s, fmt.Sprintf("slow%d", i), http.HandlerFunc(hang))
		slow.register(t, s, "v1")
	}
	good := newBackend(t, s, "good", newAPI("good"))
	good.register(t, s, "v1")
	s.awaitFreshness(t, good.group(), apidiscoveryv2.DiscoveryFreshnessCurrent)
	if message := s.condition(t, "v1.slow0.example.com", apiregistrationv1.ConditionFalse,
		"FailedDiscoveryCheck"); !strings.Contains(message, "exceeded") {
		t.Errorf("message %q", message)
	}
}

// TestBackend_BadAnswerFailsOneRequest: a wrong answer of an available backend fails only
// the request that it answers.
func TestBackend_BadAnswerFailsOneRequest(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	s := start(t)
	routes := newAPI("bad").
		serve("/header", endlessHeader).
		serve("/switch", raw("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: hello\r\n\r\n", "hello")).
		serve("/garbage", raw("hello hello hello\r\n\r\n")).
		serve("/nothing", raw("")).
		serve("/half", raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", "hello")).
		serve("/redirect", redirect).
		serve("/good", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	b := newBackend(t, s, "bad", routes, http1)
	b.available(t, s)
	for _, test := range []struct {
		path, upgrade string
		status        int
		want          string
	}{
		{"/header", "", http.StatusServiceUnavailable, "server response headers exceeded 10485760 bytes"},
		{"/header", "websocket", http.StatusServiceUnavailable, "response headers exceed 10485760 bytes"},
		{"/switch", "", http.StatusServiceUnavailable, "backend tried to switch protocol"},
		{"/garbage", "", http.StatusServiceUnavailable, "malformed HTTP status code"},
		{"/garbage", "websocket", http.StatusServiceUnavailable, "malformed HTTP status code"},
		{"/nothing", "", http.StatusServiceUnavailable, "EOF"},
		{"/redirect", "", http.StatusBadGateway, "the backend attempted to redirect this request, which is not permitted"},
		{"/redirect", "websocket", http.StatusServiceUnavailable, "invalid upgrade response: status code 302"},
		{"/good", "websocket", http.StatusServiceUnavailable, "invalid upgrade response: status code 200"},
		{"/good", "", http.StatusOK, "hello"},
	} {
		var header []string
		if test.upgrade != "" {
			header = []string{"Connection", "Upgrade", "Upgrade", test.upgrade}
		}
		status, body, _ := get(t, b.url(s, test.path), header...)
		if status != test.status || !strings.Contains(body, test.want) {
			t.Errorf("%s %s: %d %q, want %d with %q", test.path, test.upgrade, status, body, test.status, test.want)
		}
	}
	if body, err := read(t, b.url(s, "/half")); err == nil {
		t.Errorf("half an answer looks whole: %q", body)
	}
}

func read(t testing.TB, url string) (string, error) {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// TestDiscovery_DropsADocumentThatIsTooLarge: a discovery document over the limit is
// dropped as a whole; the backend still serves requests.
func TestDiscovery_DropsADocumentThatIsTooLarge(t *testing.T) {
	t.Parallel()
	s := start(t)
	sent := make(chan int, 10)
	routes := newAPI("huge")
	routes.HandleFunc("/apis", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", aggregatedType)
		_, err := io.WriteString(w, `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[`)
		n, entry := 0, `{"metadata":{"name":"`+strings.Repeat("m", 1<<20)+`"}},`
		for ; err == nil && n < 50; n++ {
			_, err = io.WriteString(w, entry)
		}
		sent <- n
	})
	b := newBackend(t, s, "huge", routes)
	b.available(t, s)
	if n := <-sent; n > 20 {
		t.Errorf("%d MiB were read", n)
	}
	s.awaitFreshness(t, b.group(), apidiscoveryv2.DiscoveryFreshnessStale)
	if status, body, _ := get(t, b.url(s, "")); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
}

// TestAvailability_ReasonsOfAService: each state of a Service that makes its backend
// unavailable has its reason; a local group version is available.
func TestAvailability_ReasonsOfAService(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := newBackend(t, s, "widgets", newAPI("widgets"))
	wrong := int32(444)
	b.register(t, s, "v2", func(spec *apiregistrationv1.APIServiceSpec) { spec.Service.Port = &wrong })
	b.register(t, s, "v3", func(spec *apiregistrationv1.APIServiceSpec) { spec.Service.Name = "sprockets" })
	s.service(t, "empty", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1})
	s.endpoints(t, "empty", false)
	b.register(t, s, "v4", func(spec *apiregistrationv1.APIServiceSpec) { spec.Service.Name = "empty" })
	b.register(t, s, "v5", func(spec *apiregistrationv1.APIServiceSpec) {
		spec.Service, spec.CABundle = nil, nil
	})
	for _, test := range []struct {
		version string
		status  apiregistrationv1.ConditionStatus
		reason  string
		message string
	}{
		{"v2", apiregistrationv1.ConditionFalse, "ServicePortError",
			`service/widgets in "backends" is not listening on port 444`},
		{"v3", apiregistrationv1.ConditionFalse, "ServiceNotFound", `service/sprockets in "backends" is not present`},
		{"v4", apiregistrationv1.ConditionFalse, "MissingEndpoints",
			`endpointslices for service/empty in "backends" have no addresses with port name "https"`},
		{"v5", apiregistrationv1.ConditionTrue, "Local", "Local APIServices are always available"},
	} {
		if got := s.condition(t, test.version+"."+b.group(), test.status, test.reason); got != test.message {
			t.Errorf("%s: %q, want %q", test.version, got, test.message)
		}
	}
	// The backend becomes available when its Service exists.
	s.service(t, "sprockets", b.Listener.Addr())
	message := s.condition(t, "v3."+b.group(), apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck")
	if !strings.Contains(message, "certificate is valid for widgets.backends.svc, not sprockets.backends.svc") {
		t.Errorf("message %q", message)
	}
}

// awaitStatus waits until a request is answered with a status.
func (s *server) awaitStatus(t testing.TB, url string, want int) {
	t.Helper()
	storetest.Eventually(t, fmt.Sprintf("%s answers %d", url, want), func() bool {
		status, _, _ := get(t, url)
		return status == want
	})
}

// awaitFreshness waits until the aggregated document has a group with that freshness.
func (s *server) awaitFreshness(t testing.TB, group string, want apidiscoveryv2.DiscoveryFreshness) {
	t.Helper()
	storetest.Eventually(t, fmt.Sprintf("%s is %s", group, want), func() bool {
		for _, item := range s.aggregated(t).Items {
			if item.Name == group && item.Versions[0].Freshness == want {
				return true
			}
		}
		return false
	})
}

const aggregatedType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

func (s *server) aggregated(t testing.TB) apidiscoveryv2.APIGroupDiscoveryList {
	t.Helper()
	var list apidiscoveryv2.APIGroupDiscoveryList
	_, body, _ := get(t, s.front.URL+"/apis", "Accept", aggregatedType)
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return list
}

// useCertificate makes the backend use a certificate for that name.
func (b *backend) useCertificate(t testing.TB, name string) {
	t.Helper()
	pair, err := tls.X509KeyPair(b.ca.issue(t, name, name))
	if err != nil {
		t.Fatal(err)
	}
	b.TLS.Certificates = []tls.Certificate{pair}
}
