package storage

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// Create implements storage.Interface.
func (s *Store) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	at, err := s.records.locate(key)
	if err != nil {
		return err
	}
	if version, err := versioner.ObjectResourceVersion(obj); err == nil && version != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}
	if err := versioner.PrepareObjectForStorage(obj); err != nil {
		return fmt.Errorf("PrepareObjectForStorage failed: %w", err)
	}
	data, err := s.serializer.Encode(obj)
	if err != nil {
		return err
	}
	w := writer{s: s, at: at}
	revision, err := w.put(ctx, obj, data, &state{}, ttl)
	if isConflict(err) {
		err = s.records.apiError(err, at.path)
	}
	if err != nil || out == nil {
		return err
	}
	return s.serializer.SetOutput(out, obj, data, revision)
}
