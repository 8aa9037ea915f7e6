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
)

const (
	// discoveryUser is the user that fetches discovery documents, and discoveryTimeout
	// bounds each request; upstream's values
	// (k8s.io/kube-aggregator/pkg/apiserver/handler_discovery.go).
	discoveryUser    = "system:kube-aggregator"
	discoveryTimeout = 5 * time.Second
)

// fetchDiscovery fetches the aggregated document or, from a backend that has none, the
// document of each group version. It returns the result for the given group versions and
// the document's ETag; it ignores what the backend says of other group versions. last is
// the result before, and etag that of the document that last was made from, "" for none.
// A group version that could not be fetched is returned as it is in last, marked as stale.
func (c *client) fetchDiscovery(ctx context.Context, gvs []schema.GroupVersion, last discoveryResult, etag string) (discoveryResult, string, error) {
	if !last.hasAll(gvs) {
		etag = ""
	}
	answer, err := c.fetch(ctx, fetchRequest{
		path: "/apis", accept: acceptAggregated, etag: etag,
		user: discoveryUser, groups: []string{user.SystemPrivilegedGroup},
		timeout: discoveryTimeout,
	})
	switch {
	case err != nil:
		return last.asStale(gvs), "", err
	case answer.status == http.StatusNotModified && etag != "":
		return last, etag, nil
	case answer.status == http.StatusServiceUnavailable:
		return last.asStale(gvs), "", fmt.Errorf("/apis: %d", answer.status)
	case answer.status == http.StatusOK && isAggregated(answer.header.Get("Content-Type")):
		whole, err := decodeAggregated(answer.body)
		if err != nil {
			return last.asStale(gvs), "", err
		}
		return whole.only(gvs), answer.header.Get("Etag"), nil
	}
	found, errs := last.asStale(gvs), []error(nil)
	for _, gv := range gvs {
		resources, err := c.fetchVersion(ctx, gv)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		found[gv] = resourceList{resources: resources}
	}
	return found, "", errors.Join(errs...)
}

// fetchVersion fetches the discovery document of one group version.
func (c *client) fetchVersion(ctx context.Context, gv schema.GroupVersion) ([]apidiscoveryv2.APIResourceDiscovery, error) {
	path := "/" + pathOf(gv)
	answer, err := c.fetch(ctx, fetchRequest{
		path: path, accept: runtime.ContentTypeJSON, user: discoveryUser, timeout: discoveryTimeout,
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
