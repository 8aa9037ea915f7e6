package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"

	"k8s.io/client-go/rest"

	"byre/e2e/servers"
)

// bareProxy answers over TLS and HTTP/2 with what a server answers, and does nothing
// else, until in ends. What it adds to a request no proxy in Go can save.
func bareProxy(to string, in io.Reader, out io.Writer) error {
	target, err := url.Parse(to)
	if err != nil {
		return err
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     &http.Transport{TLSClientConfig: insecure(), ForceAttemptHTTP2: true},
		FlushInterval: -1,
	}
	server := httptest.NewUnstartedServer(proxy)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	if _, err := fmt.Fprintln(out, server.URL); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

// insecure trusts everybody: both ends are this program's.
func insecure() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }

// startBareProxy starts this program as a bare proxy, and returns a client of it.
func startBareProxy(ctx context.Context, to *servers.Server) (c *client, stop func() error, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, program, "-bare-proxy", to.URL)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	stop = func() error {
		if err := in.Close(); err != nil {
			return err
		}
		return cmd.Wait()
	}
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, stop, err
	}
	config := to.Config(servers.AdminToken)
	config.Host, config.TLSClientConfig = strings.TrimSpace(address), rest.TLSClientConfig{Insecure: true}
	c, err = newClientOf(config)
	return c, stop, err
}
