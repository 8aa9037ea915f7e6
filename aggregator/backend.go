package aggregator

import (
	"context"
	"sync"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"byre/apiserver/handlers/documents"
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
