package process_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"
	cliflag "k8s.io/component-base/cli/flag"

	"byre/apiserver/process"
	"byre/sqlstore/storetest"
)

// A server with --disable-http2-serving serves also with cipher suites that HTTP/2 forbids alone, and has no HTTP/2
// after its certificate was replaced either.
func TestNewHTTPServer_DisablesHTTP2(t *testing.T) {
	t.Parallel()
	for name, suites := range map[string][]string{"default suites": nil,
		"one suite": {"TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkDisablesHTTP2(t, process.ServingOptions{DisableHTTP2: true, CipherSuites: suites})
		})
	}
}

func checkDisablesHTTP2(t *testing.T, o process.ServingOptions) {
	dir := t.TempDir()
	certFile, keyFile := writePair(t, dir, "first.example.com")
	config, err := process.NewTLSConfig(o)
	if err != nil {
		t.Fatal(err)
	}
	certificates, err := process.NewCertificates(config, certFile, keyFile, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	server, err := process.NewHTTPServer(o, http.NotFoundHandler(), config)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = certificates.Run(ctx) })
	group.Go(func() {
		defer listener.Close()
		if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		_ = server.Close()
		group.Wait()
	})
	connect := func(protocols ...string) (*x509.Certificate, error) {
		//nolint:gosec // the test compares the name itself
		conn, err := tls.Dial("tcp", listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: protocols})
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0], nil
	}
	if _, err := connect("h2", "http/1.1"); err != nil {
		t.Fatal(err)
	}
	if _, err := connect("h2"); err == nil {
		t.Error("a client connected with HTTP/2 alone")
	}
	writePair(t, dir, "second.example.com")
	storetest.EventuallyDone(t, "the second certificate is served", func(context.Context) (bool, error) {
		cert, err := connect("h2", "http/1.1")
		return err == nil && cert.VerifyHostname("second.example.com") == nil, err
	})
	if _, err := connect("h2"); err == nil {
		t.Error("a client connected with HTTP/2 alone after the certificate was replaced")
	}
}

// Clients that send headers slowly, send too many, or keep idle connections do not hold a server's connections.
func TestNewHTTPServer_BoundsConnections(t *testing.T) {
	t.Parallel()
	server, err := process.NewHTTPServer(process.ServingOptions{}, http.NotFoundHandler(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if server.ReadHeaderTimeout != 32*time.Second || server.IdleTimeout != 90*time.Second ||
		server.MaxHeaderBytes != 1<<20 {
		t.Errorf("headers within %v and %d bytes, idle for %v", server.ReadHeaderTimeout, server.MaxHeaderBytes,
			server.IdleTimeout)
	}
}

// writePair writes a certificate for names, and its key, to a folder.
func writePair(t *testing.T, dir string, names ...string) (certFile, keyFile string) {
	t.Helper()
	chain, key, err := cert.GenerateSelfSignedCertKey(names[0], nil, names[1:])
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for file, content := range map[string][]byte{certFile: chain, keyFile: key} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// Of two certificates for one name a client gets that of the first flag, as from kube-apiserver.
func TestCertificates_TheFirstForANameIsServed(t *testing.T) {
	t.Parallel()
	var sni []cliflag.NamedCertKey
	for _, name := range []string{"first", "second"} {
		certFile, keyFile := writePair(t, t.TempDir(), "api.example.com", name+".example.com")
		sni = append(sni, cliflag.NamedCertKey{CertFile: certFile, KeyFile: keyFile})
	}
	certFile, keyFile := writePair(t, t.TempDir(), "api.example.com", "serving.example.com")
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if _, err := process.NewCertificates(config, certFile, keyFile, nil, sni); err != nil {
		t.Fatal(err)
	}
	served, err := config.GetConfigForClient(&tls.ClientHelloInfo{ServerName: "api.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	first := served.NameToCertificate["api.example.com"] //nolint:staticcheck // upstream fills it
	if err := first.Leaf.VerifyHostname("first.example.com"); err != nil {
		t.Error(err)
	}
}
