package instances

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/klog/v2"

	"byre/apiserver/handlers"
	"byre/apiserver/storage"
	"byre/apiserver/storage/changes"
	"byre/sqlstore"
)

// Handlers serve the instances of one definition by one spec and one set of accepted
// names. When the spec or the names change, new Handlers replace these, except for changes
// of the spec that change no answer (SpecHash): Update tells of those. Handlers
// are safe for concurrent use.
type Handlers struct {
	env *Environment
	// latest is the definition's last state, stripped. Update replaces it under mu.
	latest atomic.Pointer[apiextensionsv1.CustomResourceDefinition]
	// watchTermination begins when these Handlers have been replaced or the definition is gone.
	// Watches end then; requests in flight finish.
	watchTermination *storage.WatchTermination

	// preparing is held by prepare, so that many clients that come at once, such as those whose watches have ended, cost
	// one build. It is taken before mu, which is held for moments only.
	preparing *semaphore.Weighted

	mu sync.Mutex
	// derived is nil until a request needs it.
	derived  *derived
	versions map[string]*Version // by name
}

// New makes the handlers of a definition, which is stripped.
func New(env *Environment, crd *apiextensionsv1.CustomResourceDefinition) *Handlers {
	h := &Handlers{env: env, preparing: semaphore.NewWeighted(1), watchTermination: storage.NewWatchTermination(),
		versions: map[string]*Version{}}
	h.Update(crd)
	return h
}

// Update tells the handlers of a later state of the definition with the same
// SpecHash and accepted names.
func (h *Handlers) Update(crd *apiextensionsv1.CustomResourceDefinition) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.latest.Store(crd)
	if h.derived == nil {
		return
	}
	if err := h.derived.converter.use(crd); err != nil {
		klog.ErrorS(err, "The webhook's former configuration stays in use", "definition", crd.Name)
	}
}

// EndWatches ends the watches of the instances when they have delivered all events up to
// the revision after; at once where after is 0.
func (h *Handlers) EndWatches(after int64) { h.watchTermination.After(after) }

// Version returns the handlers of a version, which must be served or stored. It fails
// with ErrReplaced if the stored definition has another spec by now and no
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
	crd := h.latest.Load()
	v, err := (&versionBuilder{Handlers: h, crd: crd}).build(name)
	if err != nil {
		return nil, fmt.Errorf("%s, version %s: %w", crd.Name, name, err)
	}
	h.versions[name] = v
	return v, nil
}

// prepare reads the definition and derives what the versions share, unless it was done
// before.
func (h *Handlers) prepare(ctx context.Context) error {
	isPrepared := func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.derived != nil
	}
	if isPrepared() {
		return nil
	}
	if err := h.preparing.Acquire(ctx, 1); err != nil {
		return err
	}
	defer h.preparing.Release(1)
	if isPrepared() {
		return nil
	}
	crd := h.latest.Load()
	source, whole, err := ReadSource(ctx, h.env.Sources, crd)
	if err != nil {
		return err
	}
	d, err := h.env.derive(crd, source, whole)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.derived = d
	return d.converter.use(h.latest.Load()) // Update may have been called meanwhile
}

// Stored returns the handlers of the version that instances are stored in. Its errors are those of Version.
func (h *Handlers) Stored(ctx context.Context) (*Version, error) {
	name, err := apihelpers.GetCRDStorageVersion(h.latest.Load())
	if err != nil {
		return nil, err
	}
	return h.Version(ctx, name)
}

// TypeOf returns the type of the instances of a kind; zero if the definition does not have it.
func (h *Handlers) TypeOf(ctx context.Context, kind schema.GroupVersionKind) changes.Type {
	if err := h.prepare(ctx); err != nil {
		return changes.Type{} // it is replaced, or the request ends
	}
	h.mu.Lock()
	types := h.derived.types
	h.mu.Unlock()
	return changes.TypeOf(types, kind)
}

// requires returns what a create or an update of an instance requires of the definition's row. A
// delete requires nothing: it writes nothing that depends on the definition.
//
// Invariant: an instance is written only while its definition exists, has the spec by which the
// instance was decoded, pruned and validated, and, for a create, is not being deleted. The
// database checks this in the transaction of the write. Otherwise a replica that has not seen a
// change of the definition would prune a new field by the old schema, or would leave an instance
// behind that no definition owns.
func (h *Handlers) requires(op sqlstore.Op) *sqlstore.Requirement {
	crd := h.latest.Load()
	r := &sqlstore.Requirement{
		Key:        sqlstore.Key{Group: apiextensions.GroupName, Resource: "customresourcedefinitions", Name: crd.Name},
		UID:        string(crd.UID),
		Generation: Generation(crd),
	}
	if op == sqlstore.Create {
		r.Generation = crd.Generation
	}
	return r
}

// isReplaced reports whether the definition had, up to a revision, another spec than that by which instances are
// decoded here, after it had this one.
func (h *Handlers) isReplaced(ctx context.Context, revision int64) (bool, error) {
	crd := h.latest.Load()
	if revision <= Revision(crd) {
		return false, nil
	}
	return h.env.Sources.IsReplaced(ctx, crd)
}

// isTerminating tells whether the definition is being deleted. Instances can then be read,
// changed and deleted, but not created.
func (h *Handlers) isTerminating() bool { return IsTerminating(h.latest.Load()) }

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

// Environment is what the instances of all definitions are served with. It is immutable.
type Environment struct {
	// Scheme has the options and the Status that are sent with custom resources.
	Scheme  *runtime.Scheme
	Storage storage.Backend
	Serving handlers.Serving
	// Converters makes the converters of definitions.
	Converters *conversion.CRConverterFactory
	// Sources reads definitions with their schemas.
	Sources SourceReader

	// conversions has what webhooks have converted.
	conversions *conversions
}

// NewEnvironment completes an environment.
func NewEnvironment(e Environment) *Environment {
	e.conversions = newConversions(maxConversions)
	return &e
}

// derived is what all versions of a definition share. All of it derives from source. It
// is immutable, except that converter follows the definition.
type derived struct {
	codecs
	source Source
	// storageVersion is the version that instances are stored in, encoding the Encoding of
	// their records.
	storageVersion schema.GroupVersion
	encoding       string
	// spec names the definition's spec, by its UID and generation.
	spec      string
	converter *converter
	// conversions is nil where no webhook converts. listKind is used only with it.
	conversions *conversions
	listKind    string
	types       lazyTypeConverter
	equivalents runtime.EquivalentResourceRegistry
	replicas    managedfields.ResourcePathMappings
}

// derive makes what the versions of crd share. crd is stripped; whole is what source
// decodes to.
func (e *Environment) derive(
	crd *apiextensionsv1.CustomResourceDefinition, source Source, whole *apiextensionsv1.CustomResourceDefinition,
) (*derived, error) {
	names := crd.Status.AcceptedNames
	if names.Plural == "" || names.Singular == "" || names.Kind == "" || names.ListKind == "" {
		return nil, fmt.Errorf("%s: not all of its names are accepted", crd.Name)
	}
	stored, err := apihelpers.GetCRDStorageVersion(crd)
	if err != nil {
		return nil, err
	}
	converter := &converter{factory: e.Converters}
	if err := converter.use(crd); err != nil {
		return nil, err
	}
	d := &derived{
		codecs:         codecs{scheme: e.Scheme, schemas: newSchemas(crd, source), convert: converter.safe()},
		source:         source,
		storageVersion: schema.GroupVersion{Group: crd.Spec.Group, Version: stored},
		encoding:       encodingOf(e.Storage.Program, whole, stored),
		spec:           fmt.Sprintf("%s/%d", whole.UID, whole.Generation),
		converter:      converter,
		types:          newLazyTypeConverter(source),
		equivalents:    equivalents(crd),
		replicas:       replicasPaths(crd),
		listKind:       names.ListKind,
	}
	if crd.Spec.Conversion.Strategy == apiextensionsv1.WebhookConverter {
		d.conversions = e.conversions
	}
	return d, nil
}

// storageCodec is the codec between the store and the handlers of a version.
func (d *derived) storageCodec(version schema.GroupVersion) runtime.Codec {
	codec := d.storage(d.storageVersion, version)
	if d.conversions == nil {
		return codec
	}
	return &convertingCodec{
		Codec:       codec,
		codecs:      d.codecs,
		converter:   d.converter,
		conversions: d.conversions,
		stored:      d.storageVersion.WithKind(d.listKind),
		version:     version,
		view:        d.view(version.Version),
	}
}

// encodingOf names what the stored bytes of a definition's instances depend on: the
// program, the storage version, and the schema by which they were pruned and defaulted.
// Other changes of a definition leave the records valid.
func encodingOf(program string, whole *apiextensionsv1.CustomResourceDefinition, stored string) string {
	return fmt.Sprintf("%s/%s/%s", program, stored,
		Hash(whole.Spec.Names.Kind, whole.Spec.PreserveUnknownFields, HashSchema(DefinitionVersion(whole, stored).Schema)))
}

// view is the storage.Config.View of a version: a name for what its readers derive from
// records of the encoding. The generation is part of it, so that nothing that readers have derived
// outlives a change of the spec: a conversion that was replaced and restored may have
// another webhook behind it.
func (d *derived) view(version string) string { return d.encoding + "/" + version + "/" + d.spec }

// equivalents tells admission that the versions are of one resource.
func equivalents(crd *apiextensionsv1.CustomResourceDefinition) runtime.EquivalentResourceRegistry {
	registry := runtime.NewEquivalentResourceRegistry()
	names := crd.Status.AcceptedNames
	for _, v := range crd.Spec.Versions {
		gv := schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}
		resource := gv.WithResource(names.Plural)
		registry.RegisterKindFor(resource, "", gv.WithKind(names.Kind))
		if HasStatus(&v) {
			registry.RegisterKindFor(resource, "status", gv.WithKind(names.Kind))
		}
		if HasScale(&v) {
			registry.RegisterKindFor(resource, "scale", ScaleKind)
		}
	}
	return registry
}

// lazy is a value that is made at its first use, dropped by release when it is no longer
// in use, and made again at its next use. An error is not kept.
type lazy[T any] struct {
	make func() (T, error)

	made atomic.Pointer[T]
	used atomic.Bool
	mu   sync.Mutex
}

func newLazy[T any](construct func() (T, error)) *lazy[T] { return &lazy[T]{make: construct} }

func (l *lazy[T]) get() (T, error) {
	if made := l.made.Load(); made != nil {
		if !l.used.Load() {
			l.used.Store(true)
		}
		return *made, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if made := l.made.Load(); made != nil {
		return *made, nil
	}
	value, err := l.make()
	if err != nil {
		return value, err
	}
	l.used.Store(true)
	l.made.Store(&value)
	return value, nil
}

// release drops a value that get has not returned since the last release.
func (l *lazy[T]) release() {
	if !l.used.Swap(false) {
		l.made.Store(nil)
	}
}
