package objectstore

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
		return storage.Stats{}, s.apiError(err, s.prefix)
	}
	usage, err := s.cfg.Feed.WaitForUsage(ctx, s.resource())
	if err != nil {
		return storage.Stats{}, s.apiError(err, s.prefix)
	}
	return statsOf(usage), nil
}

// statsOf gives counts upstream's form.
func statsOf(usage watch.Usage) storage.Stats {
	stats := storage.Stats{ObjectCount: usage.Objects}
	if usage.Objects > 0 {
		// Upstream counts the newline that encoders end an object with.
		stats.EstimatedAverageObjectSizeBytes = usage.Bytes/usage.Objects + 1
	}
	return stats
}

// EnableResourceSizeEstimation implements storage.Interface: sizes are always
// known, and the keys are not needed for them.
func (s *Store) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

// Stats returns what is stored of a resource, built-in or custom, by its name
// ("pods", "widgets.example.com") without asking the database. It never blocks.
// Like upstream's tracker it is flowcontrolrequest.ObjectCountNotFoundErr for
// what is not counted yet.
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
// apiserver_resource_objects and apiserver_resource_size_estimate_bytes. Resources
// with a built-in Store are there when they are empty, too, as upstream's are.
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

// CompactRevision implements storage.Interface: what the database says, or,
// while it can't be asked, what the feed saw last.
func (s *Store) CompactRevision() int64 {
	ctx, cancel := context.WithTimeout(context.Background(), compactTimeout)
	defer cancel()
	state, err := s.cfg.Store.State(ctx)
	if err != nil {
		return s.cfg.Feed.Compacted()
	}
	return state.Compacted
}

// RequestWatchProgress implements storage.Interface. Bookmarks need no help
// here: every watch knows how far the feed is.
func (s *Store) RequestWatchProgress(context.Context) error { return nil }
