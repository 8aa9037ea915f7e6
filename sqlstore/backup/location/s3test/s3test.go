// Package s3test serves S3 to tests, in their process.
package s3test

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// The credentials, and the region, that a client must name.
const (
	AccessKey = "key"
	SecretKey = "a secret of some length"
	Region    = "eu-central-1"
)

// New returns a service that keeps a bucket in memory.
func New(t testing.TB, bucket string) http.Handler {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket(bucket); err != nil {
		t.Fatal(err)
	}
	return gofakes3.New(backend).Server()
}

// Serve serves a service until the test ends, and returns the variables of the environment by which a program
// reaches it, each as NAME=VALUE. It speaks TLS, because gofakes3 does not support the chunked signatures that
// minio-go sends without it.
func Serve(t testing.TB, service http.Handler) (*httptest.Server, []string) {
	t.Helper()
	server := httptest.NewTLSServer(service)
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return server, []string{
		"SSL_CERT_FILE=" + ca, "AWS_ENDPOINT_URL=" + server.URL, "AWS_REGION=" + Region,
		"AWS_ACCESS_KEY_ID=" + AccessKey, "AWS_SECRET_ACCESS_KEY=" + SecretKey,
	}
}

// ServeHere is Serve for the process of the test.
func ServeHere(t testing.TB, service http.Handler) {
	t.Helper()
	_, env := Serve(t, service)
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
}
