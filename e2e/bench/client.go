package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	"k8s.io/client-go/rest"

	"byre/e2e/servers"
)

// connections is how many HTTP/2 connections the clients of one server share.
const connections = 4

// client sends bodies that were made before, and reads answers without parsing
// them: what is measured is the server.
type client struct {
	url   string
	conns []*http.Client
	next  atomic.Uint64
}

func newClient(s *servers.Server) (*client, error) {
	return newClientOf(s.Config(servers.AdminToken))
}

func newClientOf(config *rest.Config) (*client, error) {
	c := &client{url: config.Host}
	for range connections {
		config := rest.CopyConfig(config)
		// A transport of its own, and so a connection of its own: client-go
		// shares transports between equal configurations.
		config.Dial = dialer().DialContext
		conn, err := rest.HTTPClientFor(config)
		if err != nil {
			return nil, err
		}
		c.conns = append(c.conns, conn)
	}
	return c, nil
}

// open sends a request and returns the answer, whose status is want.
func (c *client) open(ctx context.Context, method, path, contentType string, body []byte, want int) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	req.Header.Set("Accept", "application/json")
	// Without a field manager of its own a write would be kept under the
	// program's name; both servers do the same work then.
	req.Header.Set("User-Agent", "bench")
	res, err := c.conns[c.next.Add(1)%connections].Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != want {
		defer res.Body.Close()
		text, err := io.ReadAll(io.LimitReader(res.Body, 2048))
		return nil, errors.Join(fmt.Errorf("%s %s: %s: %s", method, path, res.Status, text), err)
	}
	return res, nil
}

// do sends a request and reads the whole answer; it returns its length.
func (c *client) do(ctx context.Context, method, path, contentType string, body []byte, want int) (int64, error) {
	res, err := c.open(ctx, method, path, contentType, body, want)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	return io.Copy(io.Discard, res.Body)
}

func (c *client) create(ctx context.Context, path string, body []byte) error {
	_, err := c.do(ctx, http.MethodPost, path, "application/json", body, http.StatusCreated)
	return err
}

func (c *client) get(ctx context.Context, path string) (int64, error) {
	return c.do(ctx, http.MethodGet, path, "", nil, http.StatusOK)
}

func (c *client) patch(ctx context.Context, path string, body []byte) error {
	_, err := c.do(ctx, http.MethodPatch, path, "application/merge-patch+json", body, http.StatusOK)
	return err
}
