package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
)

// Listening says where clients are served. The fields are etcd's flags of these names.
type Listening struct {
	ClientURLs        []string
	CertFile, KeyFile string
	TrustedCAFile     string
	ClientCertAuth    bool
}

const (
	// stopTime is how long requests may take after a stop has begun, before their connections are closed.
	stopTime = 5 * time.Second
	// prefaceTime bounds the wait for the first bytes of a connection, and for its TLS handshake.
	prefaceTime = 10 * time.Second
	// healthTime bounds a health check.
	healthTime = 5 * time.Second
)

// Listeners are the open ports of a server.
type Listeners struct {
	open []*splitter
	tls  *tls.Config
}

// Listen opens the ports. The caller serves or closes them.
func Listen(ctx context.Context, l Listening) (_ *Listeners, err error) {
	var listeners Listeners
	defer func() {
		if err != nil {
			err = errors.Join(err, listeners.Close())
		}
	}()
	if len(l.ClientURLs) == 0 {
		return nil, errors.New("--listen-client-urls must not be empty")
	}
	for _, text := range l.ClientURLs {
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Port() == "" || u.Path != "" {
			return nil, fmt.Errorf("--listen-client-urls: %q is not of the form https://HOST:PORT or http://HOST:PORT", text)
		}
		s := &splitter{}
		if u.Scheme == "https" {
			if s.tls, err = l.tlsConfig(); err != nil {
				return nil, err
			}
			listeners.tls = s.tls
		}
		var config net.ListenConfig
		if s.listener, err = config.Listen(ctx, "tcp", u.Host); err != nil {
			return nil, fmt.Errorf("--listen-client-urls: %w", err)
		}
		s.grpc, s.http = newQueue(s.listener.Addr()), newQueue(s.listener.Addr())
		listeners.open = append(listeners.open, s)
	}
	return &listeners, nil
}

// Close closes the ports.
func (l *Listeners) Close() error {
	var errs []error
	for _, s := range l.open {
		errs = append(errs, s.listener.Close())
	}
	return errors.Join(errs...)
}

// URLs returns the addresses that clients reach, with the ports that were chosen for port 0.
func (l *Listeners) URLs() (urls []string) {
	for _, s := range l.open {
		scheme := "http"
		if s.tls != nil {
			scheme = "https"
		}
		urls = append(urls, scheme+"://"+s.listener.Addr().String())
	}
	return urls
}

// tlsConfig reads the certificate at each handshake, as etcd does, so that a renewed one is served.
//
// The protocols are in this order because clients of gRPC offer HTTP/2 alone, and all others HTTP/1.1 too: so the
// protocol tells them apart.
func (l *Listening) tlsConfig() (*tls.Config, error) {
	if l.CertFile == "" || l.KeyFile == "" {
		return nil, errors.New("an https URL of --listen-client-urls needs --cert-file and --key-file")
	}
	load := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		certificate, err := tls.LoadX509KeyPair(l.CertFile, l.KeyFile)
		return &certificate, err
	}
	if _, err := load(nil); err != nil {
		return nil, fmt.Errorf("--cert-file and --key-file: %w", err)
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: load, NextProtos: []string{"http/1.1", "h2"},
	}
	if l.TrustedCAFile != "" {
		authorities, err := os.ReadFile(l.TrustedCAFile)
		if err != nil {
			return nil, fmt.Errorf("--trusted-ca-file: %w", err)
		}
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(authorities) {
			return nil, fmt.Errorf("--trusted-ca-file: %s has no certificates", l.TrustedCAFile)
		}
	}
	switch {
	case l.ClientCertAuth && l.TrustedCAFile == "":
		return nil, errors.New("--client-cert-auth needs --trusted-ca-file")
	case l.ClientCertAuth, l.TrustedCAFile != "": // as in etcd, an authority asks for certificates
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return config, nil
}

// Serve serves the ports until ctx ends: then no connection is accepted any more, requests end, and the connections of
// watches are closed. handler serves what is no gRPC.
func (s *Server) Serve(ctx context.Context, l *Listeners, handler http.Handler) error {
	requests := &inFlight{}
	server := grpc.NewServer(
		grpc.Creds(handshaken{}),
		grpc.MaxRecvMsgSize(maxRequestBytes+grpcOverheadBytes), grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxConcurrentStreams(math.MaxUint32),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}),
		grpc.UnaryInterceptor(requests.intercept),
	)
	s.Register(server)
	s.health.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	plain := &http.Server{
		Handler: handler, ReadHeaderTimeout: prefaceTime, ErrorLog: slog.NewLogLogger(s.logger.Handler(), slog.LevelDebug),
	}
	var services sync.WaitGroup
	failed := make(chan error, 3*len(l.open))
	serve := func(f func() error) {
		services.Go(func() { failed <- f() })
	}
	for _, split := range l.open {
		serve(split.run)
		serve(func() error { return server.Serve(split.grpc) })
		serve(func() error { return plain.Serve(split.http) })
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	s.health.Shutdown()
	_ = l.Close()
	// GracefulStop tells clients to go elsewhere and waits for watches too, which last for ever: Stop ends them.
	services.Go(server.GracefulStop)
	requests.await(stopTime)
	server.Stop()
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	_ = plain.Shutdown(stopping)
	for _, split := range l.open {
		split.join()
	}
	services.Wait()
	return err
}

// inFlight counts unary calls.
type inFlight struct{ group sync.WaitGroup }

func (f *inFlight) intercept(
	ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	f.group.Add(1)
	defer f.group.Done()
	return handler(ctx, request)
}

// await waits until no call is in flight, for a time at most.
func (f *inFlight) await(limit time.Duration) {
	done := make(chan struct{})
	go func() {
		f.group.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(limit):
	}
}

// splitter gives the connections of a port to gRPC or HTTP: by the protocol that TLS has negotiated, or else by the
// first bytes.
type splitter struct {
	listener   net.Listener
	tls        *tls.Config
	grpc, http *connQueue
	group      sync.WaitGroup
}

// run accepts connections until the listener is closed.
func (s *splitter) run() error {
	for {
		conn, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // no more files, or the client was faster: the next one may do
			continue
		}
		s.group.Go(func() { s.split(conn) })
	}
}

// preface is how HTTP/2 without TLS begins.
var preface = []byte("PRI * HTTP/2.0\r\n")

func (s *splitter) split(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(prefaceTime))
	isGRPC := false
	if s.tls != nil {
		secure := tls.Server(conn, s.tls)
		if err := secure.Handshake(); err != nil {
			_ = conn.Close()
			return
		}
		conn, isGRPC = secure, secure.ConnectionState().NegotiatedProtocol == "h2"
	} else {
		reader := bufio.NewReader(conn)
		first, err := reader.Peek(len(preface))
		if err != nil && len(first) == 0 {
			_ = conn.Close()
			return
		}
		conn, isGRPC = &peeked{conn, reader}, bytes.Equal(first, preface)
	}
	_ = conn.SetDeadline(time.Time{})
	if isGRPC {
		s.grpc.push(conn)
	} else {
		s.http.push(conn)
	}
}

// join waits until no connection is being looked at, and closes the queues.
func (s *splitter) join() {
	_ = s.grpc.Close()
	_ = s.http.Close()
	s.group.Wait()
}

// peeked is a connection whose first bytes were read into a buffer.
type peeked struct {
	net.Conn
	reader *bufio.Reader
}

// Read implements net.Conn.
func (p *peeked) Read(b []byte) (int, error) {
	if p.reader != nil && p.reader.Buffered() == 0 {
		p.reader = nil
	}
	if p.reader == nil {
		return p.Conn.Read(b)
	}
	return p.reader.Read(b)
}

// connQueue is a net.Listener of connections that are open already.
type connQueue struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newQueue(addr net.Addr) *connQueue {
	return &connQueue{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (q *connQueue) push(conn net.Conn) {
	select {
	case q.conns <- conn:
	case <-q.closed:
		_ = conn.Close()
	}
}

// Accept implements net.Listener.
func (q *connQueue) Accept() (net.Conn, error) {
	select {
	case conn := <-q.conns:
		return conn, nil
	case <-q.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (q *connQueue) Close() error {
	q.once.Do(func() { close(q.closed) })
	return nil
}

// Addr implements net.Listener.
func (q *connQueue) Addr() net.Addr { return q.addr }

// handshaken gives gRPC what TLS knows of a connection whose handshake is done.
type handshaken struct{}

// ServerHandshake implements credentials.TransportCredentials.
func (handshaken) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if secure, ok := conn.(*tls.Conn); ok {
		return conn, credentials.TLSInfo{
			State:          secure.ConnectionState(),
			CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		}, nil
	}
	return conn, nil, nil
}

// ClientHandshake implements credentials.TransportCredentials.
func (handshaken) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are for servers")
}

// Info implements credentials.TransportCredentials.
func (handshaken) Info() credentials.ProtocolInfo { return credentials.ProtocolInfo{} }

// Clone implements credentials.TransportCredentials.
func (handshaken) Clone() credentials.TransportCredentials { return handshaken{} }

// OverrideServerName implements credentials.TransportCredentials.
func (handshaken) OverrideServerName(string) error { return nil }

// Handler returns the handler of /health, /readyz, /livez and /version, as etcd answers them, and of metrics.
func (s *Server) Handler(metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", metrics)
	mux.HandleFunc("/version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{
			"etcdserver": version, "etcdcluster": "3.7.0", "storage": storageVersion,
		})
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		if reason := s.unhealthy(r.Context(), false); reason != "" {
			http.Error(w, reason, http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	})
	mux.HandleFunc("/health", func(w http.ResponseWriter, r *http.Request) {
		excluded := slices.Contains(r.URL.Query()["exclude"], "NOSPACE")
		reason := s.unhealthy(r.Context(), !excluded)
		status := http.StatusOK
		if reason != "" {
			status = http.StatusServiceUnavailable
		}
		writeJSON(w, status, map[string]string{"health": fmt.Sprint(reason == ""), "reason": reason})
	})
	return mux
}

// unhealthy returns why requests fail; "" if they do not.
func (s *Server) unhealthy(ctx context.Context, withAlarm bool) string {
	ctx, cancel := context.WithTimeout(ctx, healthTime)
	defer cancel()
	if _, err := s.feed.Latest(ctx); err != nil {
		return "RANGE ERROR"
	}
	if err := s.store.Writable(); err != nil {
		return "WRITE ERROR"
	}
	if withAlarm && s.checkSpace() != nil {
		return "ALARM " + etcdserverpb.AlarmType_NOSPACE.String()
	}
	return ""
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value)
}
