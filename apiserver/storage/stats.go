package storage

import (
	"context"
	"time"

	"k8s.io/apiserver/pkg/storage"

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
	return StatsOf(usage), nil
}

// StatsOf converts counts to upstream's type.
func StatsOf(usage watch.Usage) storage.Stats {
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
