package crd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"byre/crd/instances"
)

// definitionStore is where definitions are stored, and the watch cache of them.
type definitionStore interface {
	// CachedRevision returns the revision of a definition in the watch cache; 0 if there
	// is none. loaded is false if the watch cache does not hold definitions.
	CachedRevision(name string) (revision int64, loaded bool)
	// Sync waits until the watch cache holds everything that is committed now, and
	// returns a revision that is not older.
	Sync(ctx context.Context) (revision int64, err error)
	// Get reads a definition as it is stored now, stripped. The caller may change what it
	// returns.
	Get(ctx context.Context, name string) (*apiextensionsv1.CustomResourceDefinition, error)
	// ForgetInstances drops the watch cache of a resource's instances.
	ForgetInstances(resource schema.GroupResource)
}

// resolver finds the definition and the handlers of a request. It is safe for
// concurrent use.
//
// Invariant: a definition that any client has seen established, on any server of the
// database, is served here by the time that client sends a request. find keeps this: it
// compares the definition with the watch cache and, where the informer lags, reads the
// store. Otherwise a client that creates a definition and then an instance could be told
// 404.
type resolver struct {
	env   *instances.Environment
	store definitionStore
	// notify receives a value after groups were added to changed. One value stands for any
	// number of groups.
	notify chan struct{}

	mu       sync.RWMutex
	table    instances.Table
	handlers map[string]*instances.Handlers // of the definitions in table, by name
	// removed has the resources of definitions that were removed since the last call of
	// release, forgettable those that were removed in the interval before that call. Each
	// call of release drops the watch caches of the forgettable resources and makes the
	// removed ones forgettable. A watch cache thus outlives its definition by at least
	// releaseInterval, in which watches deliver their last events from it.
	removed, forgettable map[schema.GroupResource]bool
	// changed are the API groups whose definitions have changed since takeChanged was called.
	changed sets.Set[string]
}

func newResolver(env *instances.Environment, store definitionStore) *resolver {
	return &resolver{
		env:      env,
		store:    store,
		notify:   make(chan struct{}, 1),
		handlers: map[string]*instances.Handlers{},
		removed:  map[schema.GroupResource]bool{},
		changed:  sets.New[string](),
	}
}

// takeChanged returns the groups whose definitions have changed since the last call.
func (r *resolver) takeChanged() sets.Set[string] {
	r.mu.Lock()
	defer r.mu.Unlock()
	groups := r.changed
	r.changed = sets.New[string]()
	return groups
}

// resolved is a definition with the handlers of its instances. A nil resolved serves
// nothing.
type resolved struct {
	*instances.Definition
	handlers *instances.Handlers
}

// ifServes returns r if it serves the version, or nil.
func (r *resolved) ifServes(version string) *resolved {
	if r != nil && r.Serves(version) {
		return r
	}
	return nil
}

// get returns the last known state of a definition, or nil.
func (r *resolver) get(name string) *resolved {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.resolvedOf(name)
}

// resolvedOf is get for callers that hold mu.
func (r *resolver) resolvedOf(name string) *resolved {
	d := r.table.Get(name)
	if d == nil {
		return nil
	}
	return &resolved{d, r.handlers[name]}
}

// listGroup returns the definitions of a group that clients may be shown, by name.
func (r *resolver) listGroup(group string) []*apiextensionsv1.CustomResourceDefinition {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.table.Group(group)
}

// maxReplaced bounds how often a request looks for a definition that is replaced
// between being found and being read.
const maxReplaced = 5

// version returns a definition and the handlers of one of its versions; nil if the
// version is not served.
func (r *resolver) version(
	ctx context.Context, name, version string,
) (*instances.Definition, *instances.Version, error) {
	found, err := r.find(ctx, name, version)
	for range maxReplaced {
		if found == nil || err != nil {
			return nil, nil, err
		}
		v, err := found.handlers.Version(ctx, version)
		if !errors.Is(err, instances.ErrReplaced) {
			return found.Definition, v, err
		}
		if found, err = r.refresh(ctx, name); err != nil {
			return nil, nil, err
		}
		found = found.ifServes(version)
	}
	return nil, nil, fmt.Errorf("%s: %w", name, instances.ErrReplaced)
}

// find returns the definition of that name if it serves the version, or nil.
func (r *resolver) find(ctx context.Context, name, version string) (*resolved, error) {
	found := r.get(name)
	if found.ifServes(version) != nil && found.IsCurrent(r.store.CachedRevision(name)) {
		return found, nil
	}
	if found != nil {
		// Clients poll a version that is not served yet. Comparing revisions is cheaper
		// than reading the definition.
		if _, err := r.store.Sync(ctx); err != nil {
			return nil, err
		}
		if revision, loaded := r.store.CachedRevision(name); loaded &&
			strconv.FormatInt(revision, 10) == found.CRD.ResourceVersion {
			return found.ifServes(version), nil
		}
	}
	found, err := r.refresh(ctx, name)
	return found.ifServes(version), err
}

// refresh reads the definition of that name from the store; nil if there is none.
func (r *resolver) refresh(ctx context.Context, name string) (*resolved, error) {
	last := r.get(name)
	crd, err := r.store.Get(ctx, name)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsBadRequest(err): // no definition can have the name
		if last == nil {
			return nil, nil
		}
		revision, err := r.store.Sync(ctx)
		if err == nil {
			r.remove(last.CRD, revision)
		}
		return nil, err
	case err != nil:
		return nil, err
	}
	return r.put(crd, true), nil
}

// put enters a stripped state of a definition, unless a newer one is known, and returns
// the newest. What the table holds has been in the watch cache.
func (r *resolver) put(crd *apiextensionsv1.CustomResourceDefinition, provisional bool) *resolved {
	r.mu.Lock()
	defer r.mu.Unlock()
	cached, loaded := r.store.CachedRevision(crd.Name)
	r.apply(crd.Name, r.table.Put(crd, provisional, loaded && cached == instances.Revision(crd)))
	return r.resolvedOf(crd.Name)
}

// remove takes out a definition that was deleted at a revision.
func (r *resolver) remove(crd *apiextensionsv1.CustomResourceDefinition, deleted int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.apply(crd.Name, r.table.Remove(crd, deleted))
}

// apply brings the handlers in line with a change of the table. The caller holds mu.
func (r *resolver) apply(name string, c instances.Change) {
	if c.IsNone() {
		return
	}
	last := r.handlers[name]
	switch {
	case c.After == nil:
		delete(r.handlers, name)
		r.removed[instances.Resource(c.Before.CRD)] = true
	case c.KeepsHandlers():
		last.Update(c.After.CRD)
	default:
		r.handlers[name] = instances.New(r.env, c.After.CRD)
	}
	if after, end := c.WatchesEnd(); end {
		last.EndWatches(after)
	}
	if c.ChangesIndexes() {
		r.store.ForgetInstances(instances.Resource(c.After.CRD))
	}
	if c.IsVisible() {
		r.changed.Insert(c.Group())
		select {
		case r.notify <- struct{}{}:
		default:
		}
	}
}

// release drops what no request has used since the last call of release, and the watch
// caches of the forgettable resources.
func (r *resolver) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, handlers := range r.handlers {
		handlers.Release()
	}
	for _, d := range r.table.All() {
		delete(r.forgettable, instances.Resource(d.CRD))
	}
	for resource := range r.forgettable {
		r.store.ForgetInstances(resource)
	}
	r.removed, r.forgettable = map[schema.GroupResource]bool{}, r.removed
}
