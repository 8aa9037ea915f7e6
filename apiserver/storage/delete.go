package storage

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
)

// Delete implements storage.Interface.
func (s *Store) Delete(
	ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validateDeletion storage.ValidateObjectFunc, cachedExistingObject runtime.Object, opts storage.DeleteOptions,
) error {
	at, err := s.locate(key)
	if err != nil {
		return err
	}
	r, err := s.newStateReader(at, out)
	if err != nil {
		return err
	}
	r.mustBeUnreadable = opts.ExpectTransformOrDecodeError
	from, err := r.getInitialState(ctx, cachedExistingObject)
	if err != nil {
		return err
	}
	for {
		err := preconditions.Check(at.path, from.obj)
		if err == nil {
			err = validateDeletion(ctx, from.obj)
		}
		if err != nil {
			if from, err = r.getStateAfterFailure(ctx, from, err); err != nil {
				return err
			}
			continue
		}
		change, err := s.writeRecord(ctx, sqlstore.Write{
			Op:           sqlstore.Delete,
			Key:          at.Key,
			Replaces:     from.revision,
			RequiresNone: s.cfg.Contents(at.Name),
			Author:       author(ctx, sqlstore.Delete),
		})
		if isConflict(err) {
			if from, err = r.getCurrentState(ctx); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return s.apiError(err, at.path)
		}
		if r.mustBeUnreadable {
			return nil
		}
		return s.setDeletedOutput(out, from, cachedExistingObject, change.Revision)
	}
}

// setDeletedOutput sets out to the object that was deleted, at the revision of the
// delete.
func (s *Store) setDeletedOutput(out runtime.Object, from *state, suggested runtime.Object, revision int64) error {
	if from.obj == suggested || reflect.TypeOf(out) != reflect.TypeOf(from.obj) {
		return s.decodeInto(from.data, out, revision)
	}
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(from.obj).Elem())
	return s.versioner.UpdateObject(out, uint64(revision))
}
