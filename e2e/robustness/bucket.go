package robustness

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// bucketURL is the place that two machines share.
const bucketURL = "s3://copies/cluster-1"

// bucket is a local S3 with one bucket, which each machine reaches on a way of its own.
type bucket struct {
	testing.TB
	service http.Handler
}

func newBucket(t testing.TB) (*bucket, error) {
	backend := s3mem.New()
	return &bucket{t, gofakes3.New(backend).Server()}, backend.CreateBucket("copies")
}

// bucketPath is the way of one machine to the bucket. Its zero state forwards at once.
type bucketPath struct {
	// Env is the environment with which a process takes it.
	Env []string

	mu      sync.Mutex
	swallow bool
	delay   time.Duration
	// changed is closed at the next change.
	changed chan struct{}
}

// path makes a way to the bucket.
func (b *bucket) path() (*bucketPath, error) {
	p := &bucketPath{changed: make(chan struct{})}
	// TLS, because gofakes3 does not support the chunked signatures that minio-go sends without it.
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.pass(r.Context()) {
			b.service.ServeHTTP(w, r)
		}
	}))
	b.Cleanup(func() {
		p.set(false, 0)
		server.CloseClientConnections()
		server.Close()
	})
	ca := filepath.Join(b.TempDir(), "ca.crt")
	p.Env = []string{
		"SSL_CERT_FILE=" + ca, "AWS_ENDPOINT_URL=" + server.URL, "AWS_REGION=eu-central-1",
		"AWS_ACCESS_KEY_ID=key", "AWS_SECRET_ACCESS_KEY=secret",
	}
	return p, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600)
}

// pass waits as long as a request is delayed, and while it is swallowed. It returns false if the client has gone.
func (p *bucketPath) pass(ctx context.Context) bool {
	for isDelayed := false; ; {
		p.mu.Lock()
		swallow, delay, changed := p.swallow, p.delay, p.changed
		p.mu.Unlock()
		var due <-chan time.Time
		switch {
		case swallow:
		case delay > 0 && !isDelayed:
			due = time.After(delay)
		default:
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-due:
			isDelayed = true
		case <-changed:
		}
	}
}

func (p *bucketPath) set(swallow bool, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swallow, p.delay = swallow, delay
	close(p.changed)
	p.changed = make(chan struct{})
}

// Cut has the network swallow all requests, until Mend.
func (p *bucketPath) Cut() { p.set(true, 0) }

// Slow delays each request, until Mend.
func (p *bucketPath) Slow(d time.Duration) { p.set(false, d) }

// Mend forwards at once.
func (p *bucketPath) Mend() { p.set(false, 0) }
