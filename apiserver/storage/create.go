package storage

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	apistorage "k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
)

// Create implements storage.Interface.
func (s *Store) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	at, err := s.object(key)
	if err != nil {
		return err
	}
	if version, err := s.versioner.ObjectResourceVersion(obj); err == nil && version != 0 {
		return apistorage.ErrResourceVersionSetOnCreate
	}
	if err := s.versioner.PrepareObjectForStorage(obj); err != nil {
		return fmt.Errorf("PrepareObjectForStorage failed: %w", err)
	}
	data, err := s.encode(obj)
	if err != nil {
		return err
	}
	w, err := s.prepare(ctx, obj, data, at)
	if err != nil {
		return err
	}
	revision, err := s.commit(ctx, at, w, 0, ttl)
	if err != nil {
		return s.apiError(err, at.path)
	}
	if out == nil {
		return nil
	}
	return s.give(out, obj, data, revision)
}

// begin makes the first change of an empty store. To clients a resourceVersion
// of 0 means "any", so nothing can be listed at revision 0, and etcd's first
// revision is 1.
func (s *Store) begin(ctx context.Context) error {
	change, err := s.cfg.Store.Commit(ctx, sqlstore.Write{
		Op:     sqlstore.Create,
		Key:    sqlstore.Key{Group: programName, Resource: "stores", Name: "first"},
		Value:  []byte("{}"),
		Author: sqlstore.Author{User: programName, Verb: "create"},
	})
	if err != nil && !errors.Is(err, sqlstore.ErrExists) {
		return s.apiError(err, s.prefix)
	}
	return s.apiError(s.cfg.Feed.WaitFor(ctx, max(change.Revision, 1)), s.prefix)
}
