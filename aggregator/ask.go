package aggregator

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/transport"
)

// question is what this server asks of a backend for itself.
type question struct {
	path, query string
	accept      string
	tag         string // of what is here already; "" for nothing
	user        string
	groups      []string
	timeout     time.Duration
	limit       int64 // of the answer's body, in bytes
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

// get asks the backend. Neither a slow nor an endless answer is waited for.
func (b *backend) get(ctx context.Context, q question) (*answer, error) {
	connector := b.current.Load()
	if connector.err != nil {
		return nil, connector.err
	}
	location, err := b.location(q.path, q.query)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", q.accept)
	if q.tag != "" {
		req.Header.Set("If-None-Match", q.tag)
	}
	client := http.Client{
		Transport:     transport.NewAuthProxyRoundTripper(q.user, "", q.groups, nil, connector.transport),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, q.limit+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", q.path, err)
	}
	if int64(len(body)) > q.limit {
		return nil, fmt.Errorf("%s: the answer is larger than %d bytes", q.path, q.limit)
	}
	return &answer{status: response.StatusCode, header: response.Header, body: body}, nil
}
