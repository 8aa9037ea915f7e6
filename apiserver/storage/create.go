package storage

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// Create implements storage.Interface.
func (s *Store) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	at, err := s.locate(key)
	if err != nil {
		return err
	}
	if version, err := s.versioner.ObjectResourceVersion(obj); err == nil && version != 0 {
		return storage.ErrResourceVersionSetOnCreate
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
	w.grows = s.createGrows(ctx, at.Key)
	revision, err := s.commit(ctx, at, w, 0, ttl)
	if err != nil {
		return s.apiError(err, at.path)
	}
	if out == nil {
		return nil
	}
	recordStored(ctx, data, revision)
	return s.setOutput(out, obj, data, revision)
}
