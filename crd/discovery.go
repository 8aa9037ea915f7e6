package crd

import (
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints"

	"byre/apiserver/handlers/documents"
	"byre/crd/instances"
)

// discoveryPublisher keeps discovery in line with the definitions that the resolver
// knows. One goroutine calls it.
type discoveryPublisher struct {
	resolver *resolver
	registry *documents.Discovery
	// published has what discovery lists now, by group and version.
	published map[string]map[string][]metav1.APIResource
}

func newDiscoveryPublisher(r *resolver, registry *documents.Discovery) *discoveryPublisher {
	return &discoveryPublisher{resolver: r, registry: registry, published: map[string]map[string][]metav1.APIResource{}}
}

// update publishes what the definitions of a group serve now.
func (p *discoveryPublisher) update(group string) error {
	resources := map[string][]metav1.APIResource{}
	for _, crd := range p.resolver.listGroup(group) {
		for i := range crd.Spec.Versions {
			v := &crd.Spec.Versions[i]
			if !v.Served {
				continue
			}
			// As upstream does, a version is listed before a resource of it is established.
			served := resources[v.Name]
			if instances.IsEstablished(crd) {
				served = append(served, instances.Resources(crd, v)...)
			}
			resources[v.Name] = served
		}
	}
	last := p.published[group]
	for version, served := range resources {
		before, listed := last[version]
		if listed && apiequality.Semantic.DeepEqual(before, served) && (before == nil) == (served == nil) {
			continue
		}
		gv := schema.GroupVersion{Group: group, Version: version}
		var aggregated []apidiscoveryv2.APIResourceDiscovery
		if served != nil {
			var err error
			if aggregated, err = endpoints.ConvertGroupVersionIntoToDiscovery(withKinds(gv, served)); err != nil {
				return err
			}
		}
		if err := p.registry.Add(documents.DiscoveryVersion{
			GroupVersion:        gv,
			Origin:              documents.Custom,
			Resources:           served,
			AggregatedResources: aggregated,
		}); err != nil {
			return err
		}
	}
	for version := range last {
		if _, ok := resources[version]; !ok {
			p.registry.Remove(schema.GroupVersion{Group: group, Version: version}, documents.Custom)
		}
	}
	if p.published[group] = resources; len(resources) == 0 {
		delete(p.published, group)
	}
	return nil
}

// withKinds fills in the group and version of each kind. The aggregated document has
// them for custom resources, the legacy documents do not.
func withKinds(gv schema.GroupVersion, resources []metav1.APIResource) []metav1.APIResource {
	resources = slices.Clone(resources)
	for i := range resources {
		if r := &resources[i]; r.Version == "" {
			r.Group, r.Version = gv.Group, gv.Version
		}
	}
	return resources
}
