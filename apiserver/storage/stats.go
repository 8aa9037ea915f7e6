package storage

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	apistorage "k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
)

// sizeEstimate says whether Stats tells sizes too.
type sizeEstimate struct{ enabled atomic.Bool }

// Stats implements storage.Interface.
func (s *Store) Stats(ctx context.Context) (apistorage.Stats, error) {
	if _, _, loaded := s.cfg.Feed.Lookup(s.at("", "").Key); !loaded && !s.sizes.enabled.Load() {
		n, err := s.storedCount(ctx)
		return apistorage.Stats{ObjectCount: n}, err
	}
	snapshot, err := s.cfg.Feed.Snapshot(ctx, s.resource())
	if err != nil {
		return apistorage.Stats{}, s.apiError(err, s.prefix)
	}
	stats := apistorage.Stats{ObjectCount: int64(snapshot.Len())}
	if s.sizes.enabled.Load() && stats.ObjectCount > 0 {
		total := int64(0)
		for e := range snapshot.All("", nil) {
			// Upstream counts the newline that encoders end an object with.
			total += int64(len(e.Value)) + 1
		}
		stats.EstimatedAverageObjectSizeBytes = total / stats.ObjectCount
	}
	return stats, nil
}

func (s *Store) storedCount(ctx context.Context) (int64, error) {
	gr := s.cfg.GroupResource
	n := int64(0)
	listed, err := s.cfg.Store.List(ctx, sqlstore.Query{
		Range:    sqlstore.Range{Group: gr.Group, Resource: gr.Resource, Owner: s.cfg.Owner},
		Limit:    1,
		KeysOnly: true,
	}, func(sqlstore.Record) error { n++; return nil })
	return n + listed.Remaining, s.apiError(err, s.prefix)
}

// EnableResourceSizeEstimation implements storage.Interface. The keys are not
// needed: the feed has them.
func (s *Store) EnableResourceSizeEstimation(keys apistorage.KeysFunc) error {
	if keys == nil {
		return errors.New("KeysFunc cannot be nil")
	}
	if !s.sizes.enabled.CompareAndSwap(false, true) {
		return errors.New("resourceSizeEstimator already enabled")
	}
	return nil
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
