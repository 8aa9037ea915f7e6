package instances

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	apihandlers "k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/scale"
	"k8s.io/klog/v2"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"byre/apiserver/handlers"
	"byre/apiserver/storage"
	"byre/sqlstore"
)

// Version serves one version of a definition's instances. It is immutable.
type Version struct {
	// handlers has the handler of each verb, by subresource; "" is the resource itself.
	handlers map[string]map[string]http.Handler
	registry *customresource.REST
	spec     *apiextensionsv1.CustomResourceDefinitionVersion
	schemas  *schemas
	// validating makes the strategies that validate.
	validating *lazy[strategies]
}

// Handler returns the handler of a request, or the API error that the request is to be
// answered with: NotFound for an unknown subresource, MethodNotSupported for a verb that
// it lacks.
func (v *Version) Handler(info *request.RequestInfo) (http.Handler, error) {
	resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	verbs, ok := v.handlers[info.Subresource]
	if !ok {
		return nil, apierrors.NewNotFound(resource, info.Name)
	}
	handler, ok := verbs[info.Verb]
	if !ok {
		return nil, apierrors.NewMethodNotSupported(resource, info.Verb)
	}
	return handler, nil
}

// Registry returns the registry of the version's instances.
func (v *Version) Registry() *customresource.REST { return v.registry }

// Store returns the Store of the version's instances.
func (v *Version) Store() (*storage.Store, error) {
	store, ok := v.registry.Storage.Storage.(*storage.Store)
	if !ok {
		return nil, fmt.Errorf("the storage is a %T", v.registry.Storage.Storage)
	}
	return store, nil
}

// Spec returns the version in the definition, without its schema. The caller must not change it.
func (v *Version) Spec() *apiextensionsv1.CustomResourceDefinitionVersion { return v.spec }

// Schema returns the schema of the version; nil if it has none.
func (v *Version) Schema() (*structuralschema.Structural, error) { return v.schemas.of(v.spec.Name) }

// versionBuilder makes a Version. It does what getOrCreateServingInfoFor of upstream's
// customresource_handler.go does for all versions at once.
type versionBuilder struct {
	*Handlers
	crd *apiextensionsv1.CustomResourceDefinition // of the time of build

	// build sets these.
	spec  *apiextensionsv1.CustomResourceDefinitionVersion
	gv    schema.GroupVersion
	typer runtime.ObjectTyper
}

func (b *versionBuilder) build(name string) (*Version, error) {
	if b.spec = DefinitionVersion(b.crd, name); b.spec == nil {
		return nil, errors.New("no such version")
	}
	b.gv = schema.GroupVersion{Group: b.crd.Spec.Group, Version: name}
	b.typer = newTyper(newOptionsScheme(b.gv))
	kind := b.gv.WithKind(b.crd.Status.AcceptedNames.Kind)
	typer, source, schemas := b.typer, b.derived.source, b.derived.schemas
	v := &Version{
		handlers: map[string]map[string]http.Handler{},
		spec:     b.spec,
		schemas:  schemas,
		validating: newLazy(func() (strategies, error) {
			whole, err := source()
			if err != nil {
				return strategies{}, err
			}
			return newValidating(typer, schemas, whole, kind)
		}),
	}
	storages, err := b.storages(v)
	if err != nil {
		return nil, err
	}
	config := b.config(v, storages)
	for path := range storages {
		resource, err := handlers.NewResource(config, path)
		if err != nil {
			return nil, err
		}
		_, subresource, _ := strings.Cut(path, "/")
		v.handlers[subresource] = resource.Verbs()
	}
	return v, nil
}

func (b *versionBuilder) config(v *Version, storages map[string]rest.Storage) handlers.VersionConfig {
	serving := b.env.Serving
	serving.Admission = createGuard{serving.Admission, b.isTerminating}
	serving.TypeConverter = nil
	// NewResource registers the version here, to no effect: derived.equivalents has all
	// versions already.
	serving.EquivalentResources = runtime.NewEquivalentResourceRegistry()
	options := newOptionsScheme(b.gv)
	negotiated := b.derived.negotiated(b.typer)
	return handlers.VersionConfig{
		GroupVersion: b.gv,
		Storage:      storages,
		Types: handlers.Types{
			Serializer:      negotiated,
			ParameterCodec:  runtime.NewParameterCodec(options),
			Creater:         creater{},
			Convertor:       b.derived.convert,
			UnsafeConvertor: b.derived.converter.unsafe(),
			Defaulter:       defaulter{schemas: b.derived.schemas, others: options},
			Typer:           b.typer,
		},
		Serving:    serving,
		PatchTypes: patchTypes(),
		Warnings:   DeprecationWarnings(b.crd, b.spec),
		Adjust: func(_ string, scope *apihandlers.RequestScope) error {
			scope.StandardSerializers = negotiated.standard()
			return b.adjust(v.registry, scope)
		},
	}
}

// adjust sets the fields of a custom resource's scope that differ from a built-in
// resource's.
func (b *versionBuilder) adjust(registry *customresource.REST, scope *apihandlers.RequestScope) error {
	scope.EquivalentResourceMapper = b.derived.equivalents
	// There is no internal version: instances are in memory in the version itself.
	scope.HubGroupVersion = b.gv
	var reset map[fieldpath.APIVersion]*fieldpath.Set
	switch scope.Subresource {
	case "":
		reset = registry.GetResetFields()
	case "status":
		reset = b.statusResetFields()
		scope.TableConvertor = registry
	case "scale":
		scope.Serializer = handlers.NewCodecs(scale.NewScaleConverter().Scheme())
		columns, err := tableconvertor.New(ScaleColumns(b.spec))
		if err != nil {
			return err
		}
		scope.TableConvertor = columns
	}
	var err error
	scope.FieldManager, err = managedfields.NewDefaultCRDFieldManager(b.derived.types, scope.Convertor, scope.Defaulter,
		scope.Creater, scope.Kind, scope.HubGroupVersion, scope.Subresource, fieldpath.NewExcludeFilterSetMap(reset))
	return err
}

// statusResetFields are the fields that a write to /status does not change, by version.
func (b *versionBuilder) statusResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	reset := map[fieldpath.APIVersion]*fieldpath.Set{}
	for _, v := range b.crd.Spec.Versions {
		if HasStatus(&v) && (v.Served || v.Storage) {
			gv := schema.GroupVersion{Group: b.crd.Spec.Group, Version: v.Name}
			reset[fieldpath.APIVersion(gv.String())] = fieldpath.NewSet(
				fieldpath.MakePathOrDie("metadata"), fieldpath.MakePathOrDie("spec"))
		}
	}
	return reset
}

// storages makes upstream's registries for the version and its subresources.
func (b *versionBuilder) storages(v *Version) (map[string]rest.Storage, error) {
	names := b.crd.Status.AcceptedNames
	kind := b.gv.WithKind(names.Kind)
	sub, err := newSubresources(b.spec)
	if err != nil {
		return nil, err
	}
	table, err := tableconvertor.New(Columns(b.spec))
	if err != nil {
		klog.V(2).InfoS("Printer columns that can't be used are left out", "definition", b.crd.Name, "version", b.spec.Name,
			"err", err)
	}
	plain := customresource.NewStrategy(b.typer, b.crd.Spec.Scope == apiextensionsv1.NamespaceScoped, kind,
		nil, nil, nil, sub.status, sub.scale, b.spec.SelectableFields)
	custom, err := customresource.NewStorage(
		b.gv.WithResource(names.Plural).GroupResource(),
		b.gv.WithResource(names.Singular).GroupResource(),
		kind, b.gv.WithKind(names.ListKind),
		plain,
		storage.NewRESTOptionsGetter(b.env.Storage, b),
		names.Categories, table, b.derived.replicas,
	)
	if err != nil {
		return nil, err
	}
	v.registry = custom.CustomResource
	strategy := lazyStrategy{plain, func() (updateStrategy, error) { s, err := v.validating.get(); return s.main, err }}
	v.registry.CreateStrategy, v.registry.UpdateStrategy, v.registry.ResetFieldsStrategy = strategy, strategy, strategy

	storages := map[string]rest.Storage{names.Plural: v.registry}
	if sub.status != nil {
		storages[names.Plural+"/status"] = newStatusStorage(v.registry.Store, lazyStrategy{
			customresource.NewStatusStrategy(plain),
			func() (updateStrategy, error) { s, err := v.validating.get(); return s.status, err },
		})
	}
	if custom.Scale != nil {
		storages[names.Plural+"/scale"] = scaleStorage{custom.Scale}
	}
	return storages, nil
}

// patchTypes are all patch types but strategic merge patch, which needs Go types.
func patchTypes() []string {
	supported := []string{string(types.JSONPatchType), string(types.MergePatchType), string(types.ApplyYAMLPatchType)}
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		supported = append(supported, string(types.ApplyCBORPatchType))
	}
	return supported
}

// A versionBuilder describes how the registry of its version keeps its objects. The stores of a
// definition's versions keep the same rows; each decodes to its own version.
var _ storage.Resources = (*versionBuilder)(nil)

// StoredAs implements storage.Resources.
func (*versionBuilder) StoredAs(gr schema.GroupResource) schema.GroupResource { return gr }

// StoreConfig implements storage.Resources. The prefix made of group and resource
// is that of a stock kube-apiserver: encryption at rest authenticates values by it.
func (b *versionBuilder) StoreConfig(
	gr schema.GroupResource, _ runtime.Object,
) (storage.Config, runtime.GroupVersioner, error) {
	codec := b.derived.storageCodec(b.gv)
	config := storage.Config{
		GroupResource:    gr,
		Owner:            sqlstore.Custom,
		ResourcePrefix:   gr.Group + "/" + gr.Resource,
		Codec:            codec,
		Plain:            unstructured.UnstructuredJSONScheme,
		StorageVersion:   b.derived.storageVersion,
		Encoding:         b.derived.encoding,
		View:             b.derived.view(b.gv.Version),
		Lossy:            b.gv != b.derived.storageVersion,
		IndexFields:      b.indexFields(),
		Requires:         b.requires,
		IsReplaced:       b.isReplaced,
		WatchTermination: b.watchTermination,
	}
	if converting, ok := codec.(*convertingCodec); ok {
		config.DecodeAhead, config.DecodedAge = converting.convertAhead, sharedConversionAge
	}
	return config, b.derived.storageVersion, nil
}

// indexFields returns the fields that the watch cache indexes, so that a list with a field
// selector need not compare every instance. It returns none for a version other than the
// stored one: the index is made of the stored bytes.
func (b *versionBuilder) indexFields() []string {
	if b.gv != b.derived.storageVersion || !SelectableFieldsEnabled() {
		return nil
	}
	var names []string
	for _, field := range b.spec.SelectableFields {
		names = append(names, strings.TrimPrefix(field.JSONPath, "."))
	}
	return names
}

// updateStrategy is the part of upstream's strategies of custom resources that the
// registry calls to create and update.
type updateStrategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.ResetFieldsStrategy
}

// strategies are the strategies of a version and of its status subresource.
type strategies struct{ main, status updateStrategy }

// lazyStrategy is a strategy without schemas that makes the one that validates at the
// first write. Compiling a schema is the most expensive part of serving a definition, and
// readers do not need it.
type lazyStrategy struct {
	updateStrategy
	validating func() (updateStrategy, error)
}

func (s lazyStrategy) Validate(ctx context.Context, object runtime.Object) field.ErrorList {
	validating, err := s.validating()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return validating.Validate(ctx, object)
}

func (s lazyStrategy) WarningsOnCreate(ctx context.Context, object runtime.Object) []string {
	validating, err := s.validating()
	if err != nil {
		return nil // Validate has reported it
	}
	return validating.WarningsOnCreate(ctx, object)
}

func (s lazyStrategy) ValidateUpdate(ctx context.Context, object, old runtime.Object) field.ErrorList {
	validating, err := s.validating()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return validating.ValidateUpdate(ctx, object, old)
}

func (s lazyStrategy) WarningsOnUpdate(ctx context.Context, object, old runtime.Object) []string {
	validating, err := s.validating()
	if err != nil {
		return nil // ValidateUpdate has reported it
	}
	return validating.WarningsOnUpdate(ctx, object, old)
}

// subresources are a version's subresources as upstream's strategies take them.
type subresources struct {
	status *apiextensions.CustomResourceSubresourceStatus
	scale  *apiextensions.CustomResourceSubresourceScale
}

func newSubresources(spec *apiextensionsv1.CustomResourceDefinitionVersion) (subresources, error) {
	var s subresources
	if HasStatus(spec) {
		s.status = &apiextensions.CustomResourceSubresourceStatus{}
	}
	if !HasScale(spec) {
		return s, nil
	}
	s.scale = &apiextensions.CustomResourceSubresourceScale{}
	err := apiextensionsv1.Convert_v1_CustomResourceSubresourceScale_To_apiextensions_CustomResourceSubresourceScale(
		spec.Subresources.Scale, s.scale, nil)
	return s, err
}

// newValidating compiles the schema of a version of whole, a definition with its
// schemas.
func newValidating(
	typer runtime.ObjectTyper, schemas *schemas, whole *apiextensionsv1.CustomResourceDefinition,
	kind schema.GroupVersionKind,
) (strategies, error) {
	spec := DefinitionVersion(whole, kind.Version)
	internal, err := internalValidation(spec)
	if err != nil {
		return strategies{}, err
	}
	var root *apiextensions.JSONSchemaProps
	if internal != nil {
		root = internal.OpenAPIV3Schema
	}
	validator, _, err := validation.NewSchemaValidator(root)
	if err != nil {
		return strategies{}, err
	}
	// A write to /status is validated against the schema of status alone.
	var statusValidator validation.SchemaValidator
	if root != nil && HasStatus(spec) {
		if status, ok := root.Properties["status"]; ok {
			if statusValidator, _, err = validation.NewSchemaValidator(&status); err != nil {
				return strategies{}, err
			}
		}
	}
	structural, err := schemas.of(kind.Version)
	if err != nil {
		return strategies{}, err
	}
	sub, err := newSubresources(spec)
	if err != nil {
		return strategies{}, err
	}
	made := customresource.NewStrategy(typer, whole.Spec.Scope == apiextensionsv1.NamespaceScoped, kind,
		validator, statusValidator, structural, sub.status, sub.scale, spec.SelectableFields)
	return strategies{main: made, status: customresource.NewStatusStrategy(made)}, nil
}

// statusStorage is the status subresource of a version. Upstream's StatusREST has no
// exported field for the strategy, which must be a lazyStrategy here.
type statusStorage struct{ store *genericregistry.Store }

var _ rest.Patcher = statusStorage{}

func newStatusStorage(registry *genericregistry.Store, strategy updateStrategy) statusStorage {
	store := *registry
	store.UpdateStrategy, store.ResetFieldsStrategy = strategy, strategy
	return statusStorage{&store}
}

func (s statusStorage) New() runtime.Object { return s.store.New() }

// Destroy does nothing: the store is the main resource's.
func (statusStorage) Destroy() {}

func (s statusStorage) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return s.store.Get(ctx, name, options)
}

// Update changes the status of an object that exists.
func (s statusStorage) Update(
	ctx context.Context, name string, object rest.UpdatedObjectInfo, onCreate rest.ValidateObjectFunc,
	onUpdate rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return s.store.Update(ctx, name, object, onCreate, onUpdate, false, options)
}

func (s statusStorage) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.store.GetResetFields()
}

// scaleStorage adds Destroy to upstream's ScaleREST, which makes it a rest.Storage.
type scaleStorage struct{ *customresource.ScaleREST }

// Destroy does nothing: the store is the main resource's.
func (scaleStorage) Destroy() {}

// createGuard runs the admission plugins, and forbids the creation of instances of a
// definition that is being deleted. Such instances would outlive the definition.
type createGuard struct {
	plugins       admission.Interface
	isTerminating func() bool
}

func (g createGuard) Handles(operation admission.Operation) bool {
	if operation == admission.Create && g.isTerminating() {
		return true
	}
	return g.plugins != nil && g.plugins.Handles(operation)
}

func (g createGuard) Admit(ctx context.Context, attributes admission.Attributes, o admission.ObjectInterfaces) error {
	if err := g.forbid(attributes); err != nil {
		return err
	}
	if plugins, ok := g.plugins.(admission.MutationInterface); ok && g.plugins.Handles(attributes.GetOperation()) {
		return plugins.Admit(ctx, attributes, o)
	}
	return nil
}

func (g createGuard) Validate(
	ctx context.Context, attributes admission.Attributes, o admission.ObjectInterfaces,
) error {
	if err := g.forbid(attributes); err != nil {
		return err
	}
	if plugins, ok := g.plugins.(admission.ValidationInterface); ok && g.plugins.Handles(attributes.GetOperation()) {
		return plugins.Validate(ctx, attributes, o)
	}
	return nil
}

func (g createGuard) forbid(attributes admission.Attributes) error {
	if attributes.GetOperation() != admission.Create || !g.isTerminating() {
		return nil
	}
	return apierrors.NewForbidden(attributes.GetResource().GroupResource(), attributes.GetName(),
		errors.New("create not allowed while custom resource definition is terminating"))
}
