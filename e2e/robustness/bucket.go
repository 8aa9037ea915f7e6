package robustness

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"byre/e2e/programs"
	"byre/sqlstore/storetest"
)

// bucketURL is the place that two machines share.
const bucketURL = "s3://copies/cluster-1"

// bucket is a local S3 with one bucket, which each machine reaches on a way of its own.
type bucket struct {
	testing.TB
	service http.Handler
}

// newBucket starts an S3 service: gofakes3 in this process, or the program versitygw over a directory.
func newBucket(t testing.TB, isVersitygw bool) (*bucket, error) {
	if isVersitygw {
		service, err := startVersitygw(t)
		return &bucket{t, service}, err
	}
	return &bucket{t, storetest.NewS3(t, "copies")}, nil
}

// startVersitygw returns a handler that forwards requests, unchanged because they are signed.
func startVersitygw(t testing.TB) (http.Handler, error) {
	if err := programs.Build(t.Context(), programs.Versitygw); err != nil {
		return nil, err
	}
	dir, socket := t.TempDir(), "@byre-s3-"+rand.Text() // in Linux's abstract namespace
	if err := os.Mkdir(filepath.Join(dir, "copies"), 0o700); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "versitygw.log"))
	if err != nil {
		return nil, err
	}
	service := exec.Command(programs.Versitygw.Path(), "--port", socket, "--region", storetest.S3Region, "--quiet",
		"posix", dir)
	service.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+storetest.S3AccessKey, "ROOT_SECRET_KEY="+storetest.S3SecretKey)
	service.Stdout, service.Stderr = log, log
	if err := service.Start(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	t.Cleanup(func() { _ = errors.Join(service.Process.Kill(), service.Wait(), log.Close()) }) // it is killed
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", "versitygw", r.In.Host
			r.Out.Header["X-Forwarded-For"] = nil
		},
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}, MaxIdleConnsPerHost: 16},
	}, nil
}

// bucketPath is the way of one machine to the bucket. Its zero state forwards at once.
type bucketPath struct {
	// Env is the environment with which a process takes it.
	Env []string

	mu      sync.Mutex
	swallow bool
	// lose has the next change of a copy be lost.
	lose  bool
	delay time.Duration
	// changed is closed at the next change.
	changed chan struct{}
}

// path makes a way to the bucket.
func (b *bucket) path() *bucketPath {
	p := &bucketPath{changed: make(chan struct{})}
	server, env := storetest.ServeS3(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.loses(r) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("ETag", `"0"`)
			return // as if it were written
		}
		if p.pass(r.Context()) {
			b.service.ServeHTTP(w, r)
		}
	}))
	b.Cleanup(func() { // before the server is closed
		p.set(false, 0)
		server.CloseClientConnections()
	})
	p.Env = env
	return p
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

// Lose has the bucket lose the next change that the copy gets, and confirm it.
func (p *bucketPath) Lose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = true
}

// loses reports whether the bucket loses what a request writes.
func (p *bucketPath) loses(r *http.Request) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	is := p.lose && r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/ltx/0/")
	p.lose = p.lose && !is
	return is
}

// Cut has the network swallow all requests, until Mend.
func (p *bucketPath) Cut() { p.set(true, 0) }

// Slow delays each request, until Mend.
func (p *bucketPath) Slow(d time.Duration) { p.set(false, d) }

// Mend forwards at once.
func (p *bucketPath) Mend() { p.set(false, 0) }
