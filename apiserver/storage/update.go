package storage

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
)

// GuaranteedUpdate implements storage.Interface. It begins with the object in memory,
// which may be an old one. If the update fails with an old object, it is tried again
// with the object in the database, as upstream does after a suggested object.
func (s *Store) GuaranteedUpdate(
	ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, cachedExistingObject runtime.Object,
) error {
	at, err := s.locate(key)
	if err != nil {
		return err
	}
	r, err := s.newStateReader(at, destination)
	if err != nil {
		return err
	}
	r.ignoreNotFound = ignoreNotFound
	from, err := r.getInitialState(ctx, cachedExistingObject)
	if err != nil {
		return err
	}
	for {
		obj, ttl, err := s.attempt(at, from, preconditions, tryUpdate)
		if err != nil {
			if from, err = r.getStateAfterFailure(ctx, from, err); err != nil {
				return err
			}
			continue
		}
		data, err := s.encode(obj)
		if err != nil {
			return err
		}
		if from.unchanged(data) {
			if !from.current {
				// The object that was compared may not be the stored one, so read the
				// stored one.
				if from, err = r.getCurrentState(ctx); err != nil {
					return err
				}
				if !from.unchanged(data) {
					continue
				}
			}
			return s.setOutput(destination, obj, data, from.revision)
		}
		w, err := s.prepare(ctx, obj, data, at)
		if err != nil {
			return err
		}
		if from.revision == 0 {
			w.grows = s.createGrows(ctx, at.Key)
		} else {
			w.grows = s.updateGrows(ctx, len(data), len(from.data))
		}
		revision, err := s.commit(ctx, at, w, from.revision, ttl)
		if isConflict(err) {
			if from, err = r.getCurrentState(ctx); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return s.apiError(err, at.path)
		}
		recordStored(ctx, data, revision)
		return s.setOutput(destination, obj, data, revision)
	}
}

// leases may be updated by any value while the database is at its quota. Without renewals
// nodes would become NotReady, and the controllers that delete objects would stop.
var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// createGrows reports whether a create makes the database larger, as far as the quota is concerned.
// Nodes and servers may create their Leases at the quota too: a node, or a server, that is started
// then would otherwise count as gone. The server may create its own objects: they are few, and
// without them a start does not end.
func (s *Store) createGrows(ctx context.Context, key sqlstore.Key) bool {
	if s.cfg.GroupResource == leases && (key.Namespace == metav1.NamespaceSystem || key.Namespace == corev1.NamespaceNodeLease) {
		return false
	}
	return !isOwn(ctx)
}

// updateGrows reports whether an update makes the database larger. An update by a delete
// request, such as one that sets the deletionTimestamp, does not, because it leads to a
// delete.
func (s *Store) updateGrows(ctx context.Context, size, replaced int) bool {
	if size <= replaced || s.cfg.GroupResource == leases || isOwn(ctx) {
		return false
	}
	verb := author(ctx, "").Verb
	return verb != "delete" && verb != "deletecollection"
}

// attempt calls tryUpdate with the object, after its preconditions were checked. It
// returns the new object and its time to live in seconds; 0 means unlimited.
func (s *Store) attempt(at location, from *state, preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc) (runtime.Object, uint64, error) {
	if err := preconditions.Check(at.path, from.obj); err != nil {
		return nil, 0, err
	}
	obj, ttl, err := tryUpdate(from.obj, from.meta())
	if err != nil {
		return nil, 0, err
	}
	if err := s.versioner.PrepareObjectForStorage(obj); err != nil {
		return nil, 0, fmt.Errorf("PrepareObjectForStorage failed: %w", err)
	}
	if ttl == nil {
		return obj, 0, nil
	}
	return obj, *ttl, nil
}

// getStateAfterFailure returns the current state if a write failed with a state that
// was not current, so that the caller can try again. Otherwise it returns the failure.
func (r *stateReader) getStateAfterFailure(ctx context.Context, failed *state, failure error) (*state, error) {
	if failed.current {
		return nil, failure
	}
	st, err := r.getCurrentState(ctx)
	if err != nil {
		return nil, err
	}
	if st.revision == failed.revision {
		return nil, failure
	}
	return st, nil
}
