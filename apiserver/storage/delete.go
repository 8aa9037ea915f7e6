package storage

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
)

// Delete implements storage.Interface.
func (s *Store) Delete(
	ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validateDeletion storage.ValidateObjectFunc, cachedExistingObject runtime.Object, opts storage.DeleteOptions,
) error {
	at, err := s.records.locate(key)
	if err != nil {
		return err
	}
	w, err := s.newWriter(at, out)
	if err != nil {
		return err
	}
	w.mustBeUnreadable = opts.ExpectTransformOrDecodeError
	from, err := w.getInitialState(ctx, cachedExistingObject)
	if err != nil {
		return err
	}
	for {
		err := preconditions.Check(at.path, from.obj)
		if err == nil {
			err = validateDeletion(ctx, from.obj)
		}
		if err != nil {
			if from, err = w.getStateAfterFailure(ctx, from, err); err != nil {
				return err
			}
			continue
		}
		change, err := s.records.write(ctx, sqlstore.Write{
			Op:           sqlstore.Delete,
			Key:          at.Key,
			Replaces:     from.revision,
			RequiresNone: s.cfg.Contents(at.Name),
			Author:       author(ctx, sqlstore.Delete),
		})
		if isConflict(err) {
			if from, err = w.getCurrentState(ctx); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return s.records.apiError(err, at.path)
		}
		if w.mustBeUnreadable {
			return nil
		}
		return w.setDeletedOutput(out, from, cachedExistingObject, change.Revision)
	}
}
