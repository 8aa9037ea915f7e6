package server_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/etcd/server"
	"byre/watch"
)

// issue writes a certificate for 127.0.0.1 and its key into files, by the names of certificate and key: signed by an
// authority, or by itself if that is nil.
func issue(t *testing.T, dir, name string, authority *tls.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: authority == nil,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := template, any(key)
	if authority != nil {
		parent, signer = authority.Leaf, authority.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyText := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	if err := errors.Join(err, os.WriteFile(filepath.Join(dir, name+".crt"), certificate, 0o600),
		os.WriteFile(filepath.Join(dir, name+".key"), keyText, 0o600)); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, keyText)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// With certificates, gRPC and HTTP share a port; who has none is refused, and history has the client's name.
func TestServer_Certificates(t *testing.T) {
	dir := t.TempDir()
	authority := issue(t, dir, "ca", nil)
	issue(t, dir, "server", &authority)
	client := issue(t, dir, "apiserver-etcd-client", &authority)
	roots := x509.NewCertPool()
	roots.AddCert(authority.Leaf)

	driver := dbtest.SQLite(t)
	t.Cleanup(func() { _ = driver.Close() })
	feed := watch.New(driver, watch.Options{})
	store := sqlstore.New(driver, sqlstore.Options{Publish: feed.Publish})
	dbtest.Serve(t, "store", store.Run)
	dbtest.Serve(t, "feed", feed.Run)
	listeners, err := server.Listen(t.Context(), server.Listening{
		ClientURLs: []string{"https://127.0.0.1:0"}, CertFile: filepath.Join(dir, "server.crt"),
		KeyFile: filepath.Join(dir, "server.key"), TrustedCAFile: filepath.Join(dir, "ca.crt"), ClientCertAuth: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	s := server.New(server.Options{Store: store, Feed: feed})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	dbtest.Serve(t, "listeners", func(ctx context.Context) error {
		return s.Serve(ctx, listeners, s.Handler(http.NotFoundHandler()))
	})
	url := listeners.URLs[0]
	known := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{client}}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, TLS: known, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	put, err := c.Put(t.Context(), "a", "1")
	if err != nil {
		t.Fatal(err)
	}
	changes, err := driver.Changes(t.Context(), sqlstore.ChangesQuery{After: put.Header.Revision - 1, Limit: 1})
	if err != nil || len(changes) != 1 || changes[0].Author.User != "apiserver-etcd-client" {
		t.Errorf("changes: %+v, %v", changes, err)
	}
	get := func(config *tls.Config) error {
		plain := http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
		defer plain.CloseIdleConnections()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/health", http.NoBody)
		if err != nil {
			return err
		}
		response, err := plain.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if body, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK {
			t.Errorf("health: %s, %v", body, err)
		}
		return nil
	}
	if err := get(known); err != nil {
		t.Error(err)
	}
	if err := get(&tls.Config{RootCAs: roots}); err == nil {
		t.Error("a client without a certificate was served")
	}
}
