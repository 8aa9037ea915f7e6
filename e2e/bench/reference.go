package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"

	"byre/e2e/servers"
)

// The reference servers are processes of this program, started with one of these flags.
const (
	bareProxyFlag   = "bare-proxy"
	emptyServerFlag = "empty-server"
)

// bareProxy forwards requests over TLS and HTTP/2 and does nothing else. Every proxy in Go
// has at least its cost.
func bareProxy(to string) (http.Handler, error) {
	target, err := url.Parse(to)
	return &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true},
		FlushInterval: -1,
	}, err
}

// emptyServer reads a request and answers with a fixed number of bytes. Every server in Go
// has at least its cost.
func emptyServer(size string) (http.Handler, error) {
	n, err := strconv.Atoi(size)
	if err != nil {
		return nil, err
	}
	body := []byte(strings.Repeat("x", n))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		w.Header().Set("Content-Type", jsonType)
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusCreated)
		}
		// A client that has disconnected needs no answer.
		_, _ = w.Write(body)
	}), nil
}

// serveReference serves until in ends. It first writes its URL to out.
func serveReference(handler http.Handler, in io.Reader, out io.Writer) error {
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	if _, err := fmt.Fprintln(out, server.URL); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, in)
	return err
}

// reference is a running reference server.
type reference struct {
	client *client
	cmd    *exec.Cmd
	in     io.Closer
}

func startReference(ctx context.Context, flag, argument string) (_ *reference, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r := &reference{cmd: exec.CommandContext(ctx, program, "-"+flag, argument)}
	r.cmd.Stderr = os.Stderr
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(err, r.stop())
	}
	r.client, err = newClientOf(&rest.Config{
		Host: strings.TrimSpace(address), BearerToken: servers.AdminToken, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	})
	return r, err
}

func (r *reference) stop() error { return errors.Join(r.in.Close(), r.cmd.Wait()) }

func (r *reference) pid() int { return r.cmd.Process.Pid }
