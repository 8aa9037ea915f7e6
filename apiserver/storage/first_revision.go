package storage

import (
	"context"
	"errors"
	"fmt"

	"byre/sqlstore"
	"byre/watch"
)

// EnsureFirstRevision writes a first record to a store that has none, so that the
// store's revision is at least 1, as etcd's is. A list at revision 0 is not possible,
// because to clients the resourceVersion "0" means any. The caller runs the store and
// the feed.
//
// The record's key and value are stored data: every database has them, and they must
// not change.
func EnsureFirstRevision(ctx context.Context, store *sqlstore.Store, feed *watch.Feed) error {
	if revision, err := feed.Latest(ctx); err != nil || revision > 0 {
		return err
	}
	change, err := store.Commit(ctx, sqlstore.Write{
		Op:       sqlstore.Create,
		Key:      sqlstore.Key{Group: programName, Resource: "foundations", Owner: sqlstore.BuiltIn, Name: "store"},
		Encoding: "byre/1",
		Value:    []byte(`{"apiVersion":"byre/1","kind":"Foundation","metadata":{"name":"store"}}`),
		Author:   sqlstore.Author{User: programName, Verb: "create"},
	})
	if err != nil && !errors.Is(err, sqlstore.ErrExists) { // by another server that starts now
		return fmt.Errorf("first write: %w", err)
	}
	return feed.WaitFor(ctx, max(change.Revision, 1))
}
