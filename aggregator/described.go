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

// described are the resources of group versions.
type described map[schema.GroupVersion]resourceList

// resourceList are resources in the form of the aggregated document.
type resourceList struct {
	resources []apidiscoveryv2.APIResourceDiscovery
	// stale says that they could not be learned anew.
	stale bool
}

// acceptAggregated asks for the aggregated document. Its two versions are alike,
// field by field.
const acceptAggregated = discovery.AcceptV2 + "," + discovery.AcceptV2Beta1

func isAggregated(contentType string) bool {
	for _, version := range []string{"v2", "v2beta1"} {
		kind := schema.GroupVersionKind{Group: apidiscoveryv2.GroupName, Version: version, Kind: "APIGroupDiscoveryList"}
		if is, err := discovery.ContentTypeIsGVK(contentType, kind); err == nil && is {
			return true
		}
	}
	return false
}

func decodeAggregated(body []byte) (described, error) {
	var list apidiscoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("aggregated discovery: %w", err)
	}
	all := described{}
	for _, group := range list.Items {
		for _, version := range group.Versions {
			withKinds(version.Resources)
			all[schema.GroupVersion{Group: group.Name, Version: version.Version}] = resourceList{resources: version.Resources}
		}
	}
	return all, nil
}

// withKinds puts a kind wherever there is none: some clients can't do without
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

// has says whether all of the group versions are described.
func (d described) has(gvs []schema.GroupVersion) bool {
	for _, gv := range gvs {
		if _, ok := d[gv]; !ok {
			return false
		}
	}
	return true
}

// stale leaves only the given group versions, and marks them.
func (d described) stale(gvs []schema.GroupVersion) described {
	only := d.of(gvs)
	for gv, list := range only {
		only[gv] = resourceList{resources: list.resources, stale: true}
	}
	return only
}

// of leaves only the given group versions; those that are not described are
// there, with no resources.
func (d described) of(gvs []schema.GroupVersion) described {
	only := described{}
	for _, gv := range gvs {
		only[gv] = d[gv]
	}
	return only
}

// with is d with those of the group versions that it lacks as other has them.
func (d described) with(other described, gvs []schema.GroupVersion) described {
	both := described{}
	maps.Copy(both, d)
	for _, gv := range gvs {
		if list, ok := other[gv]; ok && !d.has([]schema.GroupVersion{gv}) {
			both[gv] = list
		}
	}
	return both
}
