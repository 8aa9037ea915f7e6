package aggregator

import (
	"encoding/json"
	"fmt"
	"maps"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// discoveryResult has what a backend's discovery says of group versions.
type discoveryResult map[schema.GroupVersion]resourceList

// resourceList are the resources of a group version as the aggregated document has them.
type resourceList struct {
	resources []apidiscoveryv2.APIResourceDiscovery
	// stale is true if the last request for them has failed.
	stale bool
}

// acceptAggregated is the Accept header of requests for the aggregated document. Its two
// versions have the same fields.
const acceptAggregated = discovery.AcceptV2 + "," + acceptV2Beta1

// acceptV2Beta1 is the version of the aggregated document that servers of Kubernetes 1.26 to
// 1.29 have.
const acceptV2Beta1 = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"

func isAggregated(contentType string) bool {
	for _, version := range []string{"v2", "v2beta1"} {
		kind := schema.GroupVersionKind{Group: apidiscoveryv2.GroupName, Version: version, Kind: "APIGroupDiscoveryList"}
		if is, err := discovery.ContentTypeIsGVK(contentType, kind); err == nil && is {
			return true
		}
	}
	return false
}

func decodeAggregated(body []byte) (discoveryResult, error) {
	var list apidiscoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("aggregated discovery: %w", err)
	}
	all := discoveryResult{}
	for _, group := range list.Items {
		for _, version := range group.Versions {
			withKinds(version.Resources)
			all[schema.GroupVersion{Group: group.Name, Version: version.Version}] = resourceList{resources: version.Resources}
		}
	}
	return all, nil
}

// withKinds adds an empty kind where there is none: some clients need one
// (https://github.com/kubernetes/kubernetes/issues/118361).
func withKinds(resources []apidiscoveryv2.APIResourceDiscovery) {
	for i := range resources {
		if resources[i].ResponseKind == nil {
			resources[i].ResponseKind = &metav1.GroupVersionKind{}
		}
		for j := range resources[i].Subresources {
			if sub := &resources[i].Subresources[j]; sub.ResponseKind == nil {
				sub.ResponseKind = &metav1.GroupVersionKind{}
			}
		}
	}
}

// hasAll tells whether the result describes all of the group versions.
func (d discoveryResult) hasAll(gvs []schema.GroupVersion) bool {
	for _, gv := range gvs {
		if _, ok := d[gv]; !ok {
			return false
		}
	}
	return true
}

// asStale returns the given group versions, marked as stale.
func (d discoveryResult) asStale(gvs []schema.GroupVersion) discoveryResult {
	marked := d.only(gvs)
	for gv, list := range marked {
		marked[gv] = resourceList{resources: list.resources, stale: true}
	}
	return marked
}

// only returns the given group versions. Those that the result does not describe have no
// resources.
func (d discoveryResult) only(gvs []schema.GroupVersion) discoveryResult {
	only := discoveryResult{}
	for _, gv := range gvs {
		only[gv] = d[gv]
	}
	return only
}

// merge adds, of the given group versions, those that d lacks and other has.
func (d discoveryResult) merge(other discoveryResult, gvs []schema.GroupVersion) discoveryResult {
	both := discoveryResult{}
	maps.Copy(both, d)
	for _, gv := range gvs {
		if list, ok := other[gv]; ok && !d.hasAll([]schema.GroupVersion{gv}) {
			both[gv] = list
		}
	}
	return both
}
