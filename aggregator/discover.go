package aggregator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/klog/v2"

	"byre/apiserver/discovery"
)

// How often a backend is asked what it serves, and how soon again when it did
// not answer; upstream's values
// (k8s.io/kube-aggregator/pkg/apiserver/handler_discovery.go).
const (
	refreshInterval  = time.Minute
	firstRetry       = 500 * time.Millisecond
	discoveryTimeout = 5 * time.Second
)

// maxDiscovery bounds what is read of a backend's discovery document, in bytes.
// Those of large servers have one or two megabytes.
const maxDiscovery = 8 << 20

// aggregatorUser is in whose name discovery is asked for.
const aggregatorUser = "system:kube-aggregator"

// refresh has the backend asked soon.
func (b *backend) refresh() {
	select {
	case b.due <- struct{}{}:
	default:
	}
}

// run keeps what is known of the backend up to date until ctx ends. No backend
// waits for another.
func (b *backend) run(ctx context.Context, f *follower) {
	defer b.askedOnce() // nobody should wait for it any more
	defer func() { b.current.Load().close() }()
	select {
	case <-ctx.Done():
		return
	case <-f.located:
	}
	retry := firstRetry
	for {
		wait := refreshInterval
		if err := b.ask(ctx, f); err != nil {
			if ctx.Err() != nil {
				return
			}
			klog.V(2).InfoS("Aggregated API server does not say what it serves", "service", b.place, "err", err)
			wait, retry = retry, min(2*retry, refreshInterval)
		} else {
			retry = firstRetry
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-b.due:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// ask learns what the backend serves and shows it.
func (b *backend) ask(ctx context.Context, f *follower) error {
	gvs := f.versionsOf(b)
	found, tag, err := b.discover(ctx, gvs)
	// What was claimed meanwhile may have been inherited.
	later := f.versionsOf(b, gvs...)
	b.mu.Lock()
	if len(later) > 0 {
		found, tag = found.with(b.known, later), ""
	}
	b.known, b.tag = found, tag
	last := b.documents
	b.mu.Unlock()
	f.changed(b)
	b.askedOnce()
	if err != nil {
		return err
	}
	documents, err := b.document(ctx, gvs, last)
	later = f.versionsOf(b, gvs...)
	b.mu.Lock()
	b.documents = documents.with(b.documents, later)
	b.mu.Unlock()
	f.changed(b)
	return err
}

// inherit takes over what another connection to the same server has learned of a
// group version, until it was learned anew.
func (b *backend) inherit(from *backend, gv schema.GroupVersion) {
	from.mu.Lock()
	known, documents := from.known, from.documents
	from.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	gvs := []schema.GroupVersion{gv}
	b.known, b.tag = b.known.with(known, gvs), ""
	b.documents = b.documents.with(documents, gvs)
}

// describe returns what is known of a group version, to be shown by discovery.
func (b *backend) describe(gv schema.GroupVersion) (discovery.Version, documents) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := discovery.Version{GroupVersion: gv, Origin: discovery.Aggregated, Stale: true}
	if known, ok := b.known[gv]; ok {
		v.AggregatedResources, v.Stale = known.resources, known.stale
	}
	if v.AggregatedResources == nil {
		// Not nil: the group version is there, whatever it has.
		v.AggregatedResources = []apidiscoveryv2.APIResourceDiscovery{}
	}
	return v, b.documents
}

// discover asks for the aggregated document and, where there is none, for the
// document of each group version. What the backend says of others' group
// versions is not heard. What it says nothing of any more is as it was, and
// stale.
func (b *backend) discover(ctx context.Context, gvs []schema.GroupVersion) (described, string, error) {
	b.mu.Lock()
	last, tag := b.known, b.tag
	b.mu.Unlock()
	if !last.has(gvs) {
		tag = ""
	}
	answer, err := b.get(ctx, question{
		path: "/apis", accept: acceptAggregated, tag: tag,
		user: aggregatorUser, groups: []string{user.SystemPrivilegedGroup},
		timeout: discoveryTimeout, limit: maxDiscovery,
	})
	switch {
	case err != nil:
		return last.stale(gvs), "", err
	case answer.status == http.StatusNotModified && tag != "":
		return last, tag, nil
	case answer.status == http.StatusServiceUnavailable:
		return last.stale(gvs), "", fmt.Errorf("/apis: %d", answer.status)
	case answer.status == http.StatusOK && isAggregated(answer.header.Get("Content-Type")):
		whole, err := decodeAggregated(answer.body)
		if err != nil {
			return last.stale(gvs), "", err
		}
		return whole.of(gvs), answer.header.Get("Etag"), nil
	}
	found, errs := last.stale(gvs), []error(nil)
	for _, gv := range gvs {
		resources, err := b.discoverVersion(ctx, gv)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		found[gv] = resourceList{resources: resources}
	}
	return found, "", errors.Join(errs...)
}

// discoverVersion asks a server that has no aggregated document.
func (b *backend) discoverVersion(ctx context.Context, gv schema.GroupVersion) ([]apidiscoveryv2.APIResourceDiscovery, error) {
	path := "/" + pathOf(gv)
	answer, err := b.get(ctx, question{
		path: path, accept: runtime.ContentTypeJSON, user: aggregatorUser, timeout: discoveryTimeout, limit: maxDiscovery,
	})
	if err != nil {
		return nil, err
	}
	if answer.status != http.StatusOK {
		return nil, fmt.Errorf("%s: %d", path, answer.status)
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(answer.body, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return endpoints.ConvertGroupVersionIntoToDiscovery(list.APIResources)
}
