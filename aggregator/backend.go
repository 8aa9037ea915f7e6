package aggregator

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"

	"byre/apiserver/handlers/documents"
	"byre/apiserver/process"
)

// refreshInterval is the time between two fetches of a backend's documents. firstRetry is
// the wait after a failed fetch; every further failure doubles it, up to refreshInterval.
// Both are upstream's values (k8s.io/kube-aggregator/pkg/apiserver/handler_discovery.go).
const (
	refreshInterval = time.Minute
	firstRetry      = 500 * time.Millisecond
)

// backend is another API server, with the discovery and OpenAPI documents that this
// server has fetched from it.
type backend struct {
	client
	controller *controller

	// stop ends run.
	stop context.CancelFunc
	// refreshRequested receives a value when the documents are to be fetched soon.
	refreshRequested chan struct{}
	// discovered is closed by closeDiscovered when discovery was fetched for the first
	// time, successfully or not.
	discovered      chan struct{}
	closeDiscovered func()

	mu sync.Mutex
	// discovery has what the backend's documents say of its group versions. discoveryETag
	// is the ETag of the aggregated document that discovery was made from; "" for none.
	discovery     discoveryResult
	discoveryETag string
	openapi       openAPISpecs
}

func newBackend(key backendKey, c *controller) *backend {
	discovered := make(chan struct{})
	return &backend{
		client:           client{key: key, resolver: c.resolver},
		controller:       c,
		refreshRequested: make(chan struct{}, 1),
		discovered:       discovered,
		closeDiscovered:  sync.OnceFunc(func() { close(discovered) }),
	}
}

// requestRefresh makes run fetch the documents soon.
func (b *backend) requestRefresh() {
	select {
	case b.refreshRequested <- struct{}{}:
	default:
	}
}

// run fetches the documents every refreshInterval until ctx ends. It begins when the
// endpoints of Services are known. Each backend has a goroutine of its own, so that a slow
// backend delays no other.
func (b *backend) run(ctx context.Context, endpointsSynced <-chan struct{}) {
	defer b.closeDiscovered() // waitForDiscovery does not wait for a backend that has stopped
	defer b.close()
	select {
	case <-ctx.Done():
		return
	case <-endpointsSynced:
	}
	retry := firstRetry
	for {
		wait := refreshInterval
		if err := b.refresh(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			klog.V(2).InfoS("Discovery of an aggregated API server failed", "service", b.key, "err", err)
			wait, retry = retry, min(2*retry, refreshInterval)
		} else {
			retry = firstRetry
		}
		select {
		case <-ctx.Done():
			return
		case <-b.refreshRequested:
		case <-time.After(wait):
		}
	}
}

// refresh fetches the documents and publishes them.
//
// While refresh fetches, further APIServices may route group versions to this backend.
// What refresh has fetched does not contain these. refresh therefore keeps what the
// backend has of them already, which inherit may have copied.
func (b *backend) refresh(ctx context.Context) error {
	gvs := b.controller.groupVersions(b)
	b.mu.Lock()
	last, etag := b.discovery, b.discoveryETag
	b.mu.Unlock()

	found, etag, err := b.fetchDiscovery(ctx, gvs, last, etag)
	later := b.controller.groupVersions(b, gvs...)
	b.mu.Lock()
	if len(later) > 0 {
		found, etag = found.merge(b.discovery, later), ""
	}
	b.discovery, b.discoveryETag = found, etag
	lastOpenAPI := b.openapi
	b.mu.Unlock()
	b.controller.publishBackend(b)
	b.closeDiscovered()
	if err != nil {
		return err
	}

	specs, err := b.fetchOpenAPI(ctx, gvs, lastOpenAPI)
	later = b.controller.groupVersions(b, gvs...)
	b.mu.Lock()
	b.openapi = specs.merge(b.openapi, later)
	b.mu.Unlock()
	b.controller.publishBackend(b)
	return err
}

// inherit copies what the backend before has fetched of a group version.
// It is used until this one has fetched its own.
func (b *backend) inherit(from *backend, gv schema.GroupVersion) {
	from.mu.Lock()
	found, specs := from.discovery, from.openapi
	from.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	gvs := []schema.GroupVersion{gv}
	b.discovery, b.discoveryETag = b.discovery.merge(found, gvs), ""
	b.openapi = b.openapi.merge(specs, gvs)
}

// describe returns what was fetched of a group version.
func (b *backend) describe(gv schema.GroupVersion) (documents.DiscoveryVersion, openAPISpecs) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := documents.DiscoveryVersion{GroupVersion: gv, Origin: documents.Aggregated, Stale: true}
	if list, ok := b.discovery[gv]; ok {
		v.AggregatedResources, v.Stale = list.resources, list.stale
	}
	if v.AggregatedResources == nil {
		// Not nil: discovery lists the group version, even without resources.
		v.AggregatedResources = []apidiscoveryv2.APIResourceDiscovery{}
	}
	return v, b.openapi
}

// backendKey names a backend. APIServices with equal keys share one: they name the same
// Service, and its certificate is verified the same way.
type backendKey struct {
	namespace, name string
	port            int32
	insecure        bool
	caBundle        string
}

func backendKeyOf(service *apiregistrationv1.APIService) backendKey {
	at := service.Spec.Service
	return backendKey{
		namespace: at.Namespace,
		name:      at.Name,
		port:      ptr.Deref(at.Port, 443),
		insecure:  service.Spec.InsecureSkipTLSVerify,
		caBundle:  string(service.Spec.CABundle),
	}
}

// String names the Service, for logs.
func (k backendKey) String() string { return fmt.Sprintf("%s/%s:%d", k.namespace, k.name, k.port) }

// client makes requests to a backend. It is safe for concurrent use.
type client struct {
	key      backendKey
	resolver *process.ServiceResolver
	// connected is replaced when the client certificate of this server is rotated.
	connected atomic.Pointer[connected]
}

// connected is the result of connect: a transport or an error.
type connected struct {
	transport *backendTransport
	err       error
}

// connect makes the client use the current client certificate. Requests in flight go on
// with the one before.
func (c *client) connect(config *transportConfig, service *apiregistrationv1.APIService) error {
	t, err := config.newBackendTransport(service)
	c.closeIdle(c.connected.Swap(&connected{t, err}))
	return err
}

// transport returns the transport that connect has made.
func (c *client) transport() (*backendTransport, error) {
	current := c.connected.Load()
	return current.transport, current.err
}

// close closes the connections that no request uses.
func (c *client) close() { c.closeIdle(c.connected.Load()) }

func (*client) closeIdle(current *connected) {
	if current != nil && current.transport != nil {
		current.transport.closeIdle()
	}
}

// locate returns the URL of a path and query at an endpoint of the backend's Service.
func (c *client) locate(path, query string) (*url.URL, error) {
	at, err := c.resolver.ResolveEndpoint(c.key.namespace, c.key.name, c.key.port)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: "https", Host: at.Host, Path: path, RawQuery: query}, nil
}

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
