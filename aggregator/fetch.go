package aggregator

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/transport"
)

// fetchRequest is a request that this server makes to a backend for itself.
type fetchRequest struct {
	path, query string
	accept      string
	etag        string // of the document that is known; "" for none
	user        string
	groups      []string
	timeout     time.Duration
}

// maxDocument bounds the size of a document in bytes. The OpenAPI document of all of Kubernetes
// has four megabytes.
const maxDocument = 8 << 20

// fetchResponse is a backend's answer.
type fetchResponse struct {
	status int
	header http.Header
	body   []byte
}

// fetch makes a request. It fails if the answer takes longer than the timeout or is larger
// than maxDocument.
func (c *client) fetch(ctx context.Context, r fetchRequest) (*fetchResponse, error) {
	t, err := c.transport()
	if err != nil {
		return nil, err
	}
	location, err := c.locate(r.path, r.query)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", r.accept)
	if r.etag != "" {
		req.Header.Set("If-None-Match", r.etag)
	}
	client := http.Client{
		Transport:     transport.NewAuthProxyRoundTripper(r.user, "", r.groups, nil, t.traced),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxDocument+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.path, err)
	}
	if len(body) > maxDocument {
		return nil, fmt.Errorf("%s: the answer is larger than %d bytes", r.path, maxDocument)
	}
	return &fetchResponse{status: response.StatusCode, header: response.Header, body: body}, nil
}
