package storage

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// GuaranteedUpdate implements storage.Interface. It begins with the object in memory,
// which may be an old one. If the update fails with an old object, it is tried again
// with the object in the database, as upstream does after a suggested object.
func (s *Store) GuaranteedUpdate(
	ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, cachedExistingObject runtime.Object,
) error {
	at, err := s.records.locate(key)
	if err != nil {
		return err
	}
	w, err := s.newWriter(at, destination)
	if err != nil {
		return err
	}
	w.ignoreNotFound = ignoreNotFound
	from, err := w.getInitialState(ctx, cachedExistingObject)
	if err != nil {
		return err
	}
	for {
		obj, ttl, err := w.attempt(from, preconditions, tryUpdate)
		if err != nil {
			if from, err = w.getStateAfterFailure(ctx, from, err); err != nil {
				return err
			}
			continue
		}
		data, err := s.serializer.Encode(obj)
		if err != nil {
			return err
		}
		if from.unchanged(data) {
			if !from.current {
				// The object that was compared may not be the stored one, so read the
				// stored one.
				if from, err = w.getCurrentState(ctx); err != nil {
					return err
				}
				if !from.unchanged(data) {
					continue
				}
			}
			return s.serializer.SetOutput(destination, obj, data, from.revision)
		}
		revision, err := w.put(ctx, obj, data, from, ttl)
		if isConflict(err) {
			if from, err = w.getCurrentState(ctx); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		return s.serializer.SetOutput(destination, obj, data, revision)
	}
}
