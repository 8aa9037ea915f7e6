package registry

import "k8s.io/apimachinery/pkg/runtime/schema"

// Resources returns the resources of all built-in groups, enabled or not, those included
// whose objects are not stored.
func Resources() []schema.GroupResource {
	var all []schema.GroupResource
	for _, g := range apiGroups() {
		for _, r := range g.resources {
			all = append(all, schema.GroupResource{Group: g.name, Resource: r.name})
		}
	}
	return all
}
