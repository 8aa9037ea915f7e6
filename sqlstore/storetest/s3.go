package storetest

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
	S3AccessKey = "key"
	S3SecretKey = "a secret of some length"
	S3Region    = "eu-central-1"
)

// NewS3 returns a service that keeps a bucket in memory.
func NewS3(t testing.TB, bucket string) http.Handler {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket(bucket); err != nil {
		t.Fatal(err)
	}
	return gofakes3.New(backend).Server()
}

// ServeS3 serves a service until the test ends, and returns the variables of the environment by which a program
// reaches it, each as NAME=VALUE. It speaks TLS, because gofakes3 does not support the chunked signatures that
// minio-go sends without it.
func ServeS3(t testing.TB, service http.Handler) (*httptest.Server, []string) {
	t.Helper()
	server := httptest.NewTLSServer(service)
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	return server, []string{
		"SSL_CERT_FILE=" + ca, "AWS_ENDPOINT_URL=" + server.URL, "AWS_REGION=" + S3Region,
		"AWS_ACCESS_KEY_ID=" + S3AccessKey, "AWS_SECRET_ACCESS_KEY=" + S3SecretKey,
	}
}

// ServeS3Here is Serve for the process of the test.
func ServeS3Here(t testing.TB, service http.Handler) {
	t.Helper()
	_, env := ServeS3(t, service)
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
}
