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
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
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
		ObjectMeta:  metav1.ObjectMeta{Name: name + "-1", Namespace: namespace, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
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
func (b *backend) register(t testing.TB, s *server, version string, change ...func(*apiregistrationv1.APIServiceSpec)) string {
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
			APIResources: []metav1.APIResource{{Name: "widgets", SingularName: "widget", Kind: "Widget", Verbs: metav1.Verbs{"get", "list"}}},
		})
	})
	return a
}

// serve adds a route below v1.
func (a *api) serve(path string, handler http.HandlerFunc) *api {
	a.HandleFunc(fmt.Sprintf("/apis/%s/v1%s", a.group, path), handler)
	return a
}
