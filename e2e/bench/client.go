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

// connections is the number of HTTP/2 connections that the clients of one server share.
const connections = 4

// representation is the form in which a client asks for an answer.
type representation struct{ name, accept string }

var (
	asJSON     = representation{"JSON", "application/json"}
	asProtobuf = representation{"protobuf", protobufType}
	asTable    = representation{"table", "application/json;as=Table;v=v1;g=meta.k8s.io"}
	asMetadata = representation{"metadata, JSON",
		"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}
	asMetadataProtobuf = representation{"metadata, protobuf",
		protobufType + ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}
)

// listRepresentations are the forms in which the components of a cluster list Pods.
var listRepresentations = []representation{asJSON, asProtobuf, asTable, asMetadata, asMetadataProtobuf}

const (
	jsonType           = "application/json"
	protobufType       = "application/vnd.kubernetes.protobuf"
	mergePatchType     = "application/merge-patch+json"
	strategicPatchType = "application/strategic-merge-patch+json"
)

// client sends bodies that were encoded before, and reads answers without decoding them, so
// that it takes little of the processors that the server is measured on. It asks for gzip, as
// client-go does, and decompresses the answers.
type client struct {
	url   string
	conns []*http.Client
	next  atomic.Uint64
}

// request is a request to send.
type request struct {
	method, path string
	// accept "" means JSON; contentType "" means no Content-Type.
	accept, contentType string
	body                []byte
	// isPlain reports whether the client does not ask for gzip.
	isPlain bool
	// want is the expected status; 0 means 200.
	want int
}

func newClient(s *servers.Server, token string) (*client, error) {
	return newClientOf(s.Config(token))
}

func newClientOf(config *rest.Config) (*client, error) {
	c := &client{url: config.Host}
	for range connections {
		config := rest.CopyConfig(config)
		// A dialer of its own gives the client a transport and connections of its own:
		// client-go shares transports between equal configurations.
		config.Dial = dialer().DialContext
		conn, err := rest.HTTPClientFor(config)
		if err != nil {
			return nil, err
		}
		c.conns = append(c.conns, conn)
	}
	return c, nil
}

// open sends a request and returns the answer, which has the expected status.
func (c *client) open(ctx context.Context, r request) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, c.url+r.path, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	if r.accept == "" {
		r.accept = jsonType
	}
	req.Header.Set("Accept", r.accept)
	if r.isPlain {
		req.Header.Set("Accept-Encoding", "identity")
	}
	// The field manager of a write derives from the User-Agent: with the same one, both
	// servers do the same work.
	req.Header.Set("User-Agent", "bench")
	res, err := c.conns[c.next.Add(1)%connections].Do(req)
	if err != nil {
		return nil, err
	}
	if r.want == 0 {
		r.want = http.StatusOK
	}
	if res.StatusCode != r.want {
		defer res.Body.Close()
		text, err := io.ReadAll(io.LimitReader(res.Body, 2048))
		return nil, errors.Join(fmt.Errorf("%s %s: %s: %s", r.method, r.path, res.Status, text), err)
	}
	return res, nil
}

// send sends a request and reads the whole answer; it returns the length of the body.
func (c *client) send(ctx context.Context, r request) (int64, error) {
	res, err := c.open(ctx, r)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	return io.Copy(io.Discard, res.Body)
}

// read sends a request and returns the answer's body.
func (c *client) read(ctx context.Context, r request) ([]byte, error) {
	res, err := c.open(ctx, r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return io.ReadAll(res.Body)
}

// create posts JSON.
func (c *client) create(ctx context.Context, path string, body []byte) error {
	_, err := c.send(ctx,
		request{method: http.MethodPost, path: path, contentType: jsonType, body: body, want: http.StatusCreated})
	return err
}

func (c *client) get(ctx context.Context, path string) (int64, error) {
	return c.send(ctx, request{method: http.MethodGet, path: path})
}
