package storage

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

	"byre/sqlstore"
	"byre/watch"
)

// Stats implements storage.Interface, from the feed's running counts.
func (s *Store) Stats(ctx context.Context) (storage.Stats, error) {
	if _, err := s.cfg.Feed.Latest(ctx); err != nil {
		return storage.Stats{}, s.records.apiError(err, s.records.prefix)
	}
	usage, err := s.cfg.Feed.WaitForUsage(ctx, s.records.resource())
	if err != nil {
		return storage.Stats{}, s.records.apiError(err, s.records.prefix)
	}
	return statsOf(usage), nil
}

// statsOf converts counts to upstream's type.
func statsOf(usage watch.Usage) storage.Stats {
	stats := storage.Stats{ObjectCount: usage.Objects}
	if usage.Objects > 0 {
		// Upstream counts the newline that encoders end an object with.
		stats.EstimatedAverageObjectSizeBytes = usage.Bytes/usage.Objects + 1
	}
	return stats
}

// EnableResourceSizeEstimation implements storage.Interface. It does nothing, because
// the feed always knows the sizes.
func (s *Store) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

// Stats returns the number and the average size of the objects of a resource, built-in
// or custom, by its name ("pods", "widgets.example.com"). It never blocks and makes no
// query. Like upstream's tracker, it returns flowcontrolrequest.ObjectCountNotFoundErr
// for a resource that has not been counted yet.
func (g *Getter) Stats(resource string) (storage.Stats, error) {
	kept := g.resources.StoredAs(schema.ParseGroupResource(resource))
	r := watch.Resource{Group: kept.Group, Name: kept.Resource, Owner: sqlstore.BuiltIn}
	usage, known := g.cfg.Feed.Usage(r)
	if !known {
		return storage.Stats{}, flowcontrolrequest.ObjectCountNotFoundErr
	}
	if usage.Objects == 0 && g.Lookup(kept) == nil {
		r.Owner = sqlstore.Custom
		usage, _ = g.cfg.Feed.Usage(r)
	}
	return statsOf(usage), nil
}

// UpdateMetrics sets upstream's gauges of what is stored: apiserver_storage_objects,
// apiserver_resource_objects and apiserver_resource_size_estimate_bytes. As upstream
// does, it also reports resources with a Store and no objects.
func (g *Getter) UpdateMetrics() {
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
		gr := schema.GroupResource{Group: r.Group, Resource: r.Name}
		if r.Owner == sqlstore.BuiltIn || g.stores[gr] == nil {
			usage[gr] = u
		}
	}
	for gr, u := range usage {
		metrics.UpdateStoreStats(gr, statsOf(u), nil)
	}
	for gr := range g.measured {
		if _, ok := usage[gr]; !ok {
			metrics.DeleteStoreStats(gr)
		}
	}
	g.measured = usage
}

// compactTimeout bounds CompactRevision, which has no context.
const compactTimeout = 2 * time.Second

// CompactRevision implements storage.Interface. It returns the compacted revision of
// the database, or, while the database does not answer, the last one that the feed has
// seen.
func (s *Store) CompactRevision() int64 {
	ctx, cancel := context.WithTimeout(context.Background(), compactTimeout)
	defer cancel()
	state, err := s.cfg.Store.State(ctx)
	if err != nil {
		return s.cfg.Feed.Compacted()
	}
	return state.Compacted
}

// RequestWatchProgress implements storage.Interface. It does nothing, because every
// watch knows the feed's revision and needs no request for a bookmark.
func (s *Store) RequestWatchProgress(context.Context) error { return nil }
