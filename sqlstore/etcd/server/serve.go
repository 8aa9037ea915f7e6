package server

import (
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

	"github.com/soheilhy/cmux"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
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

// Listeners are the open ports of a server, and the addresses that clients reach, with the ports that were chosen for
// port 0.
type Listeners struct {
	open []net.Listener
	URLs []string
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
		var config net.ListenConfig
		listener, err := config.Listen(ctx, "tcp", u.Host)
		if err != nil {
			return nil, fmt.Errorf("--listen-client-urls: %w", err)
		}
		listeners.open = append(listeners.open, listener)
		listeners.URLs = append(listeners.URLs, u.Scheme+"://"+listener.Addr().String())
		if u.Scheme == "https" {
			config, err := l.tlsConfig()
			if err != nil {
				return nil, err
			}
			listeners.open[len(listeners.open)-1] = tls.NewListener(listener, config)
		}
	}
	return &listeners, nil
}

// Close closes the ports.
func (l *Listeners) Close() error {
	var errs []error
	for _, listener := range l.open {
		errs = append(errs, listener.Close())
	}
	return errors.Join(errs...)
}

// tlsConfig reads the certificate at each handshake, as etcd does, so that a renewed one is served.
//
// The protocols are in this order because clients of gRPC offer HTTP/2 alone, and all others HTTP/1.1 too: so only
// gRPC speaks HTTP/2.
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
	var requests sync.WaitGroup // the unary ones
	server := grpc.NewServer(
		grpc.Creds(handshaken{insecure.NewCredentials()}),
		grpc.MaxRecvMsgSize(maxRequestBytes+grpcOverheadBytes), grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxConcurrentStreams(math.MaxUint32),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}),
		grpc.UnaryInterceptor(func(
			ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
		) (any, error) {
			requests.Add(1)
			defer requests.Done()
			response, err := handler(ctx, request)
			return response, s.answer(err)
		}),
		grpc.StreamInterceptor(func(
			service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler,
		) error {
			return s.answer(handler(service, stream))
		}),
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
	for _, listener := range l.open {
		// By the first bytes, those of TLS decrypted.
		mux := cmux.New(listener)
		mux.SetReadTimeout(prefaceTime)
		mux.HandleError(func(err error) bool {
			time.Sleep(10 * time.Millisecond) // no more files, or the client was faster: the next one may do
			return !errors.Is(err, net.ErrClosed)
		})
		ofGRPC, ofHTTP := mux.Match(cmux.HTTP2()), mux.Match(cmux.Any())
		serve(mux.Serve)
		serve(func() error { return server.Serve(ofGRPC) })
		serve(func() error { return plain.Serve(ofHTTP) })
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
	ended := make(chan struct{})
	services.Go(func() {
		requests.Wait()
		close(ended)
	})
	select {
	case <-ended:
	case <-time.After(stopTime):
	}
	server.Stop()
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	_ = plain.Shutdown(stopping)
	services.Wait()
	return err
}

// handshaken gives gRPC what TLS knows of a connection whose handshake is done.
type handshaken struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (handshaken) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if secure, ok := conn.(*cmux.MuxConn).Conn.(*tls.Conn); ok {
		return conn, credentials.TLSInfo{
			State:          secure.ConnectionState(),
			CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		}, nil
	}
	return conn, nil, nil
}

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
