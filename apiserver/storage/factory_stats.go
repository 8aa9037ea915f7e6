package storage

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

	"byre/sqlstore"
	"byre/watch"
)

// Stats returns the number and the average size of the objects of a resource, built-in
// or custom, by its name ("pods", "widgets.example.com"). It never blocks and makes no
// query. Like upstream's tracker, it returns flowcontrolrequest.ObjectCountNotFoundErr
// for a resource that has not been counted yet.
func (g *RESTOptionsGetter) Stats(resource string) (apistorage.Stats, error) {
	kept := g.resources.StoredAs(schema.ParseGroupResource(resource))
	r := sqlstore.Resource{Group: kept.Group, Resource: kept.Resource, Owner: sqlstore.BuiltIn}
	usage, known := g.cfg.Feed.Usage(r)
	if !known {
		return apistorage.Stats{}, flowcontrolrequest.ObjectCountNotFoundErr
	}
	if usage.Objects == 0 && g.Lookup(kept) == nil {
		r.Owner = sqlstore.Custom
		usage, _ = g.cfg.Feed.Usage(r)
	}
	return StatsOf(usage), nil
}

// UpdateMetrics sets upstream's gauges of what is stored: apiserver_storage_objects,
// apiserver_resource_objects and apiserver_resource_size_estimate_bytes. As upstream
// does, it also reports resources with a Store and no objects.
func (g *RESTOptionsGetter) UpdateMetrics() {
	all := g.cfg.Feed.AllUsage()
	if all == nil {
		return
	}
	usage := make(map[schema.GroupResource]watch.Usage, len(all))
	g.mu.Lock()
	defer g.mu.Unlock()
	for gr := range g.stores {
		usage[gr] = watch.Usage{}
	}
	for r, u := range all {
		gr := schema.GroupResource{Group: r.Group, Resource: r.Resource}
		if r.Owner == sqlstore.BuiltIn || g.stores[gr] == nil {
			usage[gr] = u
		}
	}
	for gr, u := range usage {
		metrics.UpdateStoreStats(gr, StatsOf(u), nil)
	}
	for gr := range g.measured {
		if _, ok := usage[gr]; !ok {
			metrics.DeleteStoreStats(gr)
		}
	}
	g.measured = usage
}
