package process

import (
	"crypto/tls"
	"log"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"
)

// The bounds of a connection; upstream's values
// (k8s.io/apiserver/pkg/server/secure_serving.go).
const (
	minTLSVersion     = tls.VersionTLS12
	maxHeaderBytes    = 1 << 20
	idleTimeout       = 90 * time.Second
	readHeaderTimeout = 32 * time.Second
	defaultMaxStreams = 100
	// streamBuffer is the size in bytes that holds all but the largest request bodies
	// in one frame.
	streamBuffer = 256 << 10
)

// NewTLSConfig makes the part of the TLS configuration that does not change while the
// server runs. NewCertificates adds the certificates.
func NewTLSConfig(o ServingOptions) (*tls.Config, error) {
	version, err := cliflag.TLSVersion(o.MinVersion)
	if err != nil {
		return nil, err
	}
	suites, err := cliflag.TLSCipherSuites(o.CipherSuites)
	if err != nil {
		return nil, err
	}
	curves, err := cliflag.TLSCurvePreferences(o.CurvePreferences)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{
		MinVersion:       max(version, minTLSVersion),
		CipherSuites:     suites,
		CurvePreferences: curves,
		NextProtos:       []string{"h2", "http/1.1"},
		// The server requests a client certificate and does not require one. The
		// authenticators verify it; clients may use other credentials.
		ClientAuth: tls.RequestClientCert,
	}
	if o.DisableHTTP2 {
		config.NextProtos = []string{"http/1.1"}
	}
	return config, nil
}

// NewHTTPServer makes the server of a handler. It modifies config; a nil config makes a
// server of plain HTTP.
func NewHTTPServer(o ServingOptions, handler http.Handler, config *tls.Config) (*http.Server, error) {
	server := &http.Server{
		Handler:           handler,
		TLSConfig:         config,
		MaxHeaderBytes:    maxHeaderBytes,
		IdleTimeout:       idleTimeout,
		ReadHeaderTimeout: readHeaderTimeout,
		ErrorLog:          log.New(connectionErrors{}, "", 0),
	}
	setMaxHeaderValueCount(server)
	if o.DisableHTTP2 {
		// By default net/http would add HTTP/2 to config, and fail if its suites lack the one that HTTP/2 requires.
		server.Protocols = new(http.Protocols)
		server.Protocols.SetHTTP1(true)
		return server, nil
	}
	streams := o.MaxStreams
	if streams == 0 {
		streams = defaultMaxStreams
	}
	//nolint:staticcheck // net/http allows a connection no buffer of 4 MiB; upstream configures its servers so too
	err := http2.ConfigureServer(server, &http2.Server{
		IdleTimeout:                  idleTimeout,
		MaxUploadBufferPerStream:     streamBuffer,
		MaxReadFrameSize:             streamBuffer,
		MaxConcurrentStreams:         uint32(streams),
		MaxUploadBufferPerConnection: streamBuffer * int32(streams),
	})
	return server, err
}

// connectionErrors logs what net/http reports about single connections, at a verbosity
// that is off by default: any client can cause such errors.
type connectionErrors struct{}

func (connectionErrors) Write(p []byte) (int, error) {
	line := strings.TrimSpace(string(p))
	if strings.Contains(line, "TLS handshake error") {
		metrics.TLSHandshakeErrors.Inc()
		klog.V(5).InfoS("Connection failed", "err", line)
	} else {
		klog.V(2).InfoS("Connection failed", "err", line)
	}
	return len(p), nil
}
