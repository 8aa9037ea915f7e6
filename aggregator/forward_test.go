package aggregator_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/net/http2"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"byre/aggregator"
	"byre/apiserver/process"
	"byre/sqlstore/storetest"
)

// startReader starts a server that only reads, and a server that writes, which handler serves.
func startReader(t *testing.T, handler http.Handler) (reader *server, writer *httptest.Server) {
	t.Helper()
	ca, file := newAuthority(t, "ca"), filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, ca.pem, 0o600); err != nil {
		t.Fatal(err)
	}
	reader = start(t, func(d *process.Dependencies, _ *aggregator.Options) {
		d.Writers = &process.Writers{CA: file, Self: "self"}
	})
	reader.writersCA = file
	writer = reader.newWriter(t, ca, handler)
	writer.StartTLS()
	return reader, writer
}

// newWriter makes a server that writes, with a certificate of ca.
func (s *server) newWriter(t *testing.T, ca *authority, handler http.Handler) *httptest.Server {
	t.Helper()
	pair, err := tls.X509KeyPair(ca.issue(t, "kube-apiserver", "kubernetes.default.svc"))
	if err != nil {
		t.Fatal(err)
	}
	frontProxies := x509.NewCertPool()
	frontProxies.AddCert(s.frontProxyCA.cert)
	writer := httptest.NewUnstartedServer(handler)
	writer.TLS = &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: frontProxies,
	}
	writer.EnableHTTP2 = true
	writer.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(func() {
		writer.CloseClientConnections()
		writer.Close()
	})
	return writer
}

// addLease adds the identity Lease of a server that is reached at an address.
func (s *server) addLease(t *testing.T, name, address string, age time.Duration) {
	t.Helper()
	renewed := metav1.NewMicroTime(time.Now().Add(-age))
	_, err := s.cluster.CoordinationV1().Leases("kube-system").Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"apiserver.kubernetes.io/identity": "kube-apiserver"},
			Annotations: map[string]string{"kubernetes.io/peer-advertise-address": address},
		},
		Spec: coordinationv1.LeaseSpec{RenewTime: &renewed},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func (s *server) removeLease(t *testing.T, name string) {
	t.Helper()
	if err := s.cluster.CoordinationV1().Leases("kube-system").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// post sends a POST request, which each server that only reads forwards.
func (s *server) post(t *testing.T, path, body string, header ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.front.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	return do(t, req)
}

func TestForward_SendsWritesToTheServerThatWrites(t *testing.T) {
	t.Parallel()
	reader, writer := startReader(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		w.Header().Set("Warning", `299 - "w"`)
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, req.URL.String()+" "+string(body)+" "+req.Header.Get("X-Remote-User")+" "+strings.Join(req.Header["X-Remote-Group"], ","))
	}))
	reader.addLease(t, "dead", unserved(t).String(), 0)
	reader.addLease(t, "alive", writer.Listener.Addr().String(), time.Second)
	reader.addLease(t, "old", unserved(t).String(), time.Hour)
	reader.addLease(t, "self", reader.front.Listener.Addr().String(), 0)
	for range 2 {
		status, answer, header := reader.post(t, "/api/v1/a%2Fb?x=1", "hello", "X-Remote-User", "admin", "X-Remote-Group", "system:masters")
		if want := "/api/v1/a%2Fb?x=1 hello tess testers,system:authenticated"; status != http.StatusConflict || answer != want {
			t.Errorf("%d %q, want %q", status, answer, want)
		}
		if header.Get("Warning") == "" {
			t.Errorf("no warning: %v", header)
		}
	}
	if status, body, _ := get(t, reader.front.URL+"/api/v1/pods"); status != http.StatusNotFound || !strings.Contains(body, "not routed") {
		t.Errorf("a GET: %d %q", status, body)
	}
}

// A request that was not sent may be repeated, one that broke off may not.
func TestForward_SaysWhetherARequestMayBeRepeated(t *testing.T) {
	t.Parallel()
	var sent atomic.Int32
	reader, writer := startReader(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		sent.Add(1)
		panic(http.ErrAbortHandler)
	}))
	status, answer, header := reader.post(t, "/api/v1/pods", "{}")
	if status != http.StatusServiceUnavailable || header.Get("Retry-After") != "1" || !strings.Contains(answer, "this server only reads") {
		t.Errorf("without a server that writes: %d %v %s", status, header, answer)
	}
	reader.addLease(t, "dead", unserved(t).String(), 0)
	if status, _, header := reader.post(t, "/api/v1/pods", "{}"); status != http.StatusServiceUnavailable || header.Get("Retry-After") != "1" {
		t.Errorf("with a dead one: %d %v", status, header)
	}
	status, answer, header = reader.post(t, "/api/v1/namespaces/n/pods/p/exec", "", "Connection", "Upgrade", "Upgrade", "SPDY/3.1")
	if status != http.StatusServiceUnavailable || header.Get("Retry-After") != "1" || strings.Contains(answer, "dial") {
		t.Errorf("an upgrade: %d %v %s", status, header, answer)
	}
	stranger := httptest.NewTLSServer(writer.Config.Handler)
	defer stranger.Close()
	reader.addLease(t, "stranger", stranger.Listener.Addr().String(), -time.Second)
	if status, _, header := reader.post(t, "/api/v1/pods", "{}"); status != http.StatusServiceUnavailable || header.Get("Retry-After") != "1" {
		t.Errorf("with one of another certificate: %d %v", status, header)
	}
	reader.removeLease(t, "stranger")
	reader.addLease(t, "alive", writer.Listener.Addr().String(), time.Second)
	status, _, header = reader.post(t, "/api/v1/pods", "{}", "X-Kubernetes-Peer-Proxied", "true")
	if status != http.StatusServiceUnavailable || sent.Load() != 0 {
		t.Errorf("of another server that only reads: %d %v", status, header)
	}
	status, answer, header = reader.post(t, "/api/v1/pods", "{}")
	if status != http.StatusGatewayTimeout || header.Get("Retry-After") != "" || sent.Load() != 1 {
		t.Errorf("broken off: %d %v %s, sent %d times", status, header, answer, sent.Load())
	}
}

// A server that has lost the database answers, and renews its Lease no more.
func TestForward_LeavesAServerThatRefusesRequests(t *testing.T) {
	t.Parallel()
	var lost atomic.Bool
	reader, writer := startReader(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if lost.Load() {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	other := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }))
	other.TLS, other.EnableHTTP2 = writer.TLS.Clone(), true
	other.StartTLS()
	defer other.Close()
	defer other.CloseClientConnections()
	reader.addLease(t, "first", writer.Listener.Addr().String(), time.Second)
	if status, answer, _ := reader.post(t, "/api/v1/pods", "{}"); status != http.StatusOK {
		t.Fatalf("%d %s", status, answer)
	}
	lost.Store(true)
	reader.addLease(t, "other", other.Listener.Addr().String(), 0)
	storetest.EventuallySucceeds(t, "the other server gets the requests", func() error {
		if status, _, _ := reader.post(t, "/api/v1/pods", "{}"); status != http.StatusCreated {
			return fmt.Errorf("status %d", status)
		}
		return nil
	})
}

// The CA of the servers that write may be replaced while a server runs, and its file may be broken for a moment.
func TestForward_FollowsTheCAOfTheServersThatWrite(t *testing.T) {
	t.Parallel()
	reader, _ := startReader(t, http.NotFoundHandler())
	ca := newAuthority(t, "new-ca")
	writer := reader.newWriter(t, ca, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }))
	writer.StartTLS()
	reader.addLease(t, "alive", writer.Listener.Addr().String(), 0)
	for _, content := range []string{"broken", string(ca.pem)} {
		if err := os.WriteFile(reader.writersCA, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if status, answer, header := reader.post(t, "/api/v1/pods", "{}"); status != http.StatusServiceUnavailable || header.Get("Retry-After") != "1" {
			t.Errorf("%d %v %s", status, header, answer)
		}
	}
	storetest.EventuallySucceeds(t, "the new CA is trusted", func() error {
		if status, answer, _ := reader.post(t, "/api/v1/pods", "{}"); status != http.StatusCreated {
			return fmt.Errorf("%d %s", status, answer)
		}
		return nil
	})
}

// A server that stops sends GOAWAY, which names the last request that it processes. Those after it are sent again.
func TestForward_SendsARequestAgainAfterGOAWAY(t *testing.T) {
	t.Parallel()
	reader, writer := startReader(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.Copy(w, req.Body)
	}))
	stopping := httptest.NewUnstartedServer(nil)
	stopping.TLS, stopping.EnableHTTP2 = writer.TLS.Clone(), true
	stopping.Config.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){"h2": func(_ *http.Server, conn *tls.Conn, _ http.Handler) {
		if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
			t.Error(err)
		}
		framer := http2.NewFramer(conn, conn)
		if err := framer.WriteSettings(); err != nil {
			t.Error(err)
		}
		for {
			frame, err := framer.ReadFrame()
			if err != nil {
				return // the client has closed the connection
			}
			if data, ok := frame.(*http2.DataFrame); ok && data.StreamEnded() {
				reader.removeLease(t, "stopping")
				if err := framer.WriteGoAway(0, http2.ErrCodeNo, nil); err != nil {
					t.Error(err)
				}
			}
		}
	}}
	stopping.StartTLS()
	defer stopping.Close()
	defer stopping.CloseClientConnections()
	reader.addLease(t, "alive", writer.Listener.Addr().String(), time.Second)
	reader.addLease(t, "stopping", stopping.Listener.Addr().String(), 0)
	if status, answer, _ := reader.post(t, "/api/v1/pods", "hello"); status != http.StatusCreated || answer != "hello" {
		t.Errorf("%d %q", status, answer)
	}
}

// silentListener accepts connections on which, once silent is set, the kernel still answers and the server does not:
// the server was stopped by SIGSTOP.
type silentListener struct {
	net.Listener
	silent atomic.Bool
}

func (l *silentListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return &silentConn{conn, &l.silent}, err
}

type silentConn struct {
	net.Conn
	silent *atomic.Bool
}

func (c *silentConn) Write(b []byte) (int, error) {
	if c.silent.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// A server that does not answer any more, not even to pings, is left for another one.
func TestForward_LeavesAServerThatIsSilent(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as the health check")
	}
	t.Parallel()
	reader, other := startReader(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }))
	first := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	first.TLS, first.EnableHTTP2 = other.TLS.Clone(), true
	listener := &silentListener{Listener: first.Listener}
	first.Listener = listener
	first.StartTLS()
	defer first.Close()
	defer first.CloseClientConnections()
	reader.addLease(t, "first", first.Listener.Addr().String(), 0)
	if status, answer, _ := reader.post(t, "/api/v1/pods", "{}"); status != http.StatusOK {
		t.Fatalf("%d %s", status, answer)
	}
	listener.silent.Store(true)
	begun := time.Now()
	// Its outcome is unknown.
	if status, answer, _ := reader.post(t, "/api/v1/pods", "{}"); status != http.StatusGatewayTimeout {
		t.Errorf("%d %s", status, answer)
	}
	// Until the Lease of the other server is newer, connections are tried that no server completes.
	if status, answer, header := reader.post(t, "/api/v1/pods", "{}"); status != http.StatusServiceUnavailable || header.Get("Retry-After") != "1" {
		t.Errorf("%d %v %s", status, header, answer)
	}
	reader.addLease(t, "other", other.Listener.Addr().String(), -time.Second)
	if status, answer, _ := reader.post(t, "/api/v1/pods", "{}"); status != http.StatusCreated {
		t.Errorf("%d %s", status, answer)
	}
	// The defaults of client-go are 45 seconds for the one and 10 for the other.
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("requests were answered after %v", took)
	}
}

// kubectl exec over SPDY is a POST request that takes over its connection.
func TestForward_CarriesUpgrades(t *testing.T) {
	t.Parallel()
	reader, writer := startReader(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		streams := make(chan httpstream.Stream, 1)
		conn := spdy.NewResponseUpgrader().UpgradeResponse(w, req, func(stream httpstream.Stream, _ <-chan struct{}) error {
			streams <- stream
			return nil
		})
		if conn == nil {
			return
		}
		defer conn.Close()
		stream := <-streams
		if _, err := uuid.Parse(req.Header.Get("Audit-Id")); err != nil {
			_, _ = io.WriteString(stream, err.Error())
		}
		_, _ = io.WriteString(stream, req.Header.Get("X-Remote-User")+" ")
		_, _ = io.Copy(stream, stream)
	}))
	reader.addLease(t, "alive", writer.Listener.Addr().String(), 0)
	conn := dialSPDY(t, reader.front.URL+"/api/v1/namespaces/n/pods/p/exec")
	stream, err := conn.CreateStream(http.Header{})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, stream, "tess ")
	if _, err := io.WriteString(stream, "hello"); err != nil {
		t.Fatal(err)
	}
	expect(t, stream, "hello")
}
