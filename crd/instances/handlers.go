package instances

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/klog/v2"

	"byre/apiserver/storage"
	"byre/crd/definition"
	"byre/sqlstore"
)

// Handlers serve the instances of one definition by one spec and one set of accepted
// names. When the spec or the names change, new Handlers replace these, except for changes
// of the spec that change no answer (definition.SpecHash): Update tells of those. Handlers
// are safe for concurrent use.
type Handlers struct {
	env *Environment
	// terminating is true while the definition is being deleted. Instances can then be
	// read, changed and deleted, but not created.
	terminating atomic.Bool
	// requirements are what writes of instances require of the definition.
	requirements atomic.Pointer[requirements]
	// watchTermination begins when these Handlers have been replaced or the definition is gone.
	// Watches end then; requests in flight finish.
	watchTermination *storage.WatchTermination

	mu sync.Mutex
	// crd is the definition's last state, stripped.
	crd *apiextensionsv1.CustomResourceDefinition
	// derived is nil until a request needs it.
	derived  *derived
	versions map[string]*Version // by name
}

// New makes the handlers of a definition, which is stripped.
func New(env *Environment, crd *apiextensionsv1.CustomResourceDefinition) *Handlers {
	h := &Handlers{env: env, watchTermination: storage.NewWatchTermination(), versions: map[string]*Version{}}
	h.Update(crd)
	return h
}

// Update tells the handlers of a later state of the definition with the same
// definition.SpecHash and accepted names.
func (h *Handlers) Update(crd *apiextensionsv1.CustomResourceDefinition) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.crd = crd
	h.requirements.Store(newRequirements(crd))
	h.terminating.Store(definition.IsTerminating(crd))
	if h.derived == nil {
		return
	}
	if err := h.derived.converter.use(crd); err != nil {
		klog.ErrorS(err, "The webhook's former configuration stays in use", "definition", crd.Name)
	}
}

// EndWatches ends the watches of the instances when they have delivered all events up to
// the revision after; at once where after is 0.
func (h *Handlers) EndWatches(after int64) {
	if after == 0 {
		h.watchTermination.Now()
		return
	}
	h.watchTermination.After(after)
}

// Version returns the handlers of a version, which must be served or stored. It fails
// with definition.ErrReplaced if the stored definition has another spec by now and no
// request has used these handlers before.
func (h *Handlers) Version(ctx context.Context, name string) (*Version, error) {
	if err := h.prepare(ctx); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if v, ok := h.versions[name]; ok {
		return v, nil
	}
	v, err := (&versionBuilder{
		env:              h.env,
		crd:              h.crd,
		derived:          h.derived,
		terminating:      &h.terminating,
		requires:         func(op sqlstore.Op) *sqlstore.Requirement { return h.requirements.Load().of(op) },
		watchTermination: h.watchTermination,
	}).build(name)
	if err != nil {
		return nil, fmt.Errorf("%s, version %s: %w", h.crd.Name, name, err)
	}
	h.versions[name] = v
	return v, nil
}

// prepare reads the definition and derives what the versions share, unless it was done
// before.
func (h *Handlers) prepare(ctx context.Context) error {
	h.mu.Lock()
	crd, prepared := h.crd, h.derived != nil
	h.mu.Unlock()
	if prepared {
		return nil
	}
	source, whole, err := definition.ReadSource(ctx, h.env.Sources, crd)
	if err != nil {
		return err
	}
	d, err := h.env.derive(crd, source, whole)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.derived != nil {
		return nil
	}
	h.derived = d
	return d.converter.use(h.crd) // Update may have been called meanwhile
}

// Stored returns the handlers of the version that instances are stored in. Its errors are those of Version.
func (h *Handlers) Stored(ctx context.Context) (*Version, error) {
	h.mu.Lock()
	name, err := apihelpers.GetCRDStorageVersion(h.crd)
	h.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return h.Version(ctx, name)
}

// Release drops the compiled validation, types and schemas that no request has used since
// the last call of Release.
func (h *Handlers) Release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.derived == nil {
		return
	}
	h.derived.schemas.release()
	h.derived.types.release()
	for _, v := range h.versions {
		v.validating.release()
	}
}
