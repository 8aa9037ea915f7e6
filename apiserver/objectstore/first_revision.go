package objectstore

import (
	"context"
	"errors"
	"fmt"

	"byre/sqlstore"
	"byre/watch"
)

// EnsureFirstRevision writes a first record to a store without one, so that the store's
// revision is at least 1, as etcd's is. Nothing can be listed at revision 0, because to
// clients a resourceVersion of 0 means "any". The store and the feed must be running.
//
// The record's key is stored data: every database has it, and it must not change.
func EnsureFirstRevision(ctx context.Context, store *sqlstore.Store, feed *watch.Feed) error {
	if revision, err := feed.Latest(ctx); err != nil || revision > 0 {
		return err
	}
	change, err := store.Commit(ctx, sqlstore.Write{
		Op:     sqlstore.Create,
		Key:    sqlstore.Key{Group: programName, Resource: "foundations", Owner: sqlstore.BuiltIn, Name: "store"},
		Form:   "byre/1",
		Value:  []byte(`{"apiVersion":"byre/1","kind":"Foundation","metadata":{"name":"store"}}`),
		Author: sqlstore.Author{User: programName, Verb: "create"},
	})
	if err != nil && !errors.Is(err, sqlstore.ErrExists) { // by another server that starts now
		return fmt.Errorf("first write: %w", err)
	}
	return feed.WaitFor(ctx, max(change.Revision, 1))
}

// ensureFirstRevision is EnsureFirstRevision for a reader that comes before the server
// has called it.
func (s *Store) ensureFirstRevision(ctx context.Context) error {
	return s.apiError(EnsureFirstRevision(ctx, s.cfg.Store, s.cfg.Feed), s.prefix)
}
