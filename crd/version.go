package crd

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/scale"
	"k8s.io/klog/v2"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"byre/apiserver/endpoints"
)

// version serves one version of what a definition defines.
type version struct {
	*endpoints.Version
	storage customresource.CustomResourceStorage
}

// statusStorage and scaleStorage complete upstream's to a rest.Storage. They
// share the store of their parent, which has nothing to release.
type statusStorage struct{ *customresource.StatusREST }

func (statusStorage) Destroy() {}

type scaleStorage struct{ *customresource.ScaleREST }

func (scaleStorage) Destroy() {}

// newVersion makes the storages, the scopes and the routes of a version. It
// does what getOrCreateServingInfoFor of upstream's customresource_handler.go
// does for all versions at once.
func (i *instances) newVersion(p *parts, name string) (*version, error) {
	spec := versionSpec(i.crd, name)
	if spec == nil {
		return nil, fmt.Errorf("no such version")
	}
	gv := schema.GroupVersion{Group: i.crd.Spec.Group, Version: name}
	typer := newTyper(newOptionsScheme(gv))
	storage, err := i.newStorage(p, spec, typer, &keeper{
		config:  i.storage,
		parts:   p,
		version: gv,
		view:    fmt.Sprintf("%s/%d/%s", i.crd.UID, i.crd.Generation, name),
	})
	if err != nil {
		return nil, err
	}

	plural := i.crd.Status.AcceptedNames.Plural
	storages := map[string]rest.Storage{plural: storage.CustomResource}
	if storage.Status != nil {
		storages[plural+"/status"] = statusStorage{storage.Status}
	}
	if storage.Scale != nil {
		storages[plural+"/scale"] = scaleStorage{storage.Scale}
	}
	serving := i.serving
	serving.Admission = admit{serving.Admission, &i.terminating}
	serving.TypeConverter = nil
	// What endpoints enters in here goes nowhere: parts.equivalents knows all
	// versions already.
	serving.EquivalentResources = runtime.NewEquivalentResourceRegistry()
	serializer := p.negotiated(typer)
	v := &version{storage: storage}
	v.Version, err = endpoints.NewVersion(endpoints.VersionConfig{
		GroupVersion: gv,
		Storage:      storages,
		Types: endpoints.Types{
			Serializer:      serializer,
			ParameterCodec:  runtime.NewParameterCodec(newOptionsScheme(gv)),
			Creater:         creater{},
			Convertor:       p.convert,
			UnsafeConvertor: p.unsafe,
			Defaulter:       defaulter{schemas: p.schemas, others: newOptionsScheme(gv)},
			Typer:           typer,
		},
		Serving:    serving,
		PatchTypes: patchTypes(),
		Warnings:   deprecationWarnings(i.crd, spec),
		Adjust: func(path string, scope *handlers.RequestScope) error {
			scope.StandardSerializers = serializer.standard()
			scope.EquivalentResourceMapper = p.equivalents
			// The version itself is what it is held in in memory.
			scope.HubGroupVersion = gv
			return i.adjust(p, spec, storage, scope)
		},
	})
	if err != nil {
		return nil, err
	}
	return v, nil
}

// adjust gives a scope its field manager, and the scale subresource its types.
func (i *instances) adjust(p *parts, spec *apiextensionsv1.CustomResourceDefinitionVersion, storage customresource.CustomResourceStorage, scope *handlers.RequestScope) error {
	var reset map[fieldpath.APIVersion]*fieldpath.Set
	switch scope.Subresource {
	case "":
		reset = storage.CustomResource.GetResetFields()
	case "status":
		reset = i.statusResetFields()
		scope.TableConvertor = storage.CustomResource
	case "scale":
		scope.Serializer = newCodecs(scale.NewScaleConverter().Scheme())
		columns, err := tableconvertor.New(scaleColumns(spec))
		if err != nil {
			return err
		}
		scope.TableConvertor = columns
	}
	var err error
	scope.FieldManager, err = managedfields.NewDefaultCRDFieldManager(p.types, scope.Convertor, scope.Defaulter,
		scope.Creater, scope.Kind, scope.HubGroupVersion, scope.Subresource, fieldpath.NewExcludeFilterSetMap(reset))
	return err
}

// statusResetFields are the fields that a write to /status has no effect on, in
// all versions that have it.
func (i *instances) statusResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	reset := map[fieldpath.APIVersion]*fieldpath.Set{}
	for _, v := range i.crd.Spec.Versions {
		if hasStatus(&v) && (v.Served || v.Storage) {
			gv := schema.GroupVersion{Group: i.crd.Spec.Group, Version: v.Name}
			reset[fieldpath.APIVersion(gv.String())] = fieldpath.NewSet(
				fieldpath.MakePathOrDie("metadata"), fieldpath.MakePathOrDie("spec"))
		}
	}
	return reset
}

// newStorage makes upstream's registries for a version and its subresources.
func (i *instances) newStorage(p *parts, spec *apiextensionsv1.CustomResourceDefinitionVersion, typer runtime.ObjectTyper, kept *keeper) (customresource.CustomResourceStorage, error) {
	none := customresource.CustomResourceStorage{}
	names := i.crd.Status.AcceptedNames
	gv := schema.GroupVersion{Group: i.crd.Spec.Group, Version: spec.Name}
	validators, err := newValidators(spec)
	if err != nil {
		return none, err
	}
	structural, err := p.schemas.of(spec.Name)
	if err != nil {
		return none, err
	}
	var scaleSpec *apiextensions.CustomResourceSubresourceScale
	if hasScale(spec) {
		scaleSpec = &apiextensions.CustomResourceSubresourceScale{}
		if err := apiextensionsv1.Convert_v1_CustomResourceSubresourceScale_To_apiextensions_CustomResourceSubresourceScale(spec.Subresources.Scale, scaleSpec, nil); err != nil {
			return none, err
		}
	}
	table, err := tableconvertor.New(columns(spec))
	if err != nil {
		klog.V(2).InfoS("Printer columns that can't be used are left out", "definition", i.crd.Name, "version", spec.Name, "err", err)
	}
	return customresource.NewStorage(
		gv.WithResource(names.Plural).GroupResource(),
		gv.WithResource(names.Singular).GroupResource(),
		gv.WithKind(names.Kind),
		gv.WithKind(names.ListKind),
		customresource.NewStrategy(
			typer,
			i.crd.Spec.Scope == apiextensionsv1.NamespaceScoped,
			gv.WithKind(names.Kind),
			validators.whole, validators.status,
			structural,
			validators.statusSpec, scaleSpec,
			spec.SelectableFields,
		),
		kept,
		names.Categories,
		table,
		p.replicas,
	)
}

// validators check objects of one version against its schema.
type validators struct {
	whole, status validation.SchemaValidator
	// statusSpec is nil where there is no status subresource.
	statusSpec *apiextensions.CustomResourceSubresourceStatus
}

func newValidators(spec *apiextensionsv1.CustomResourceDefinitionVersion) (validators, error) {
	var v validators
	internal, err := internalValidation(spec)
	if err != nil {
		return v, err
	}
	var root *apiextensions.JSONSchemaProps
	if internal != nil {
		root = internal.OpenAPIV3Schema
	}
	if v.whole, _, err = validation.NewSchemaValidator(root); err != nil {
		return v, err
	}
	if !hasStatus(spec) {
		return v, nil
	}
	v.statusSpec = &apiextensions.CustomResourceSubresourceStatus{}
	if root == nil {
		return v, nil
	}
	// What is written to /status is checked against the schema of status alone.
	if status, ok := root.Properties["status"]; ok {
		v.status, _, err = validation.NewSchemaValidator(&status)
	}
	return v, err
}

// patchTypes are all but strategic merge patch, which needs Go types.
func patchTypes() []string {
	supported := []string{string(types.JSONPatchType), string(types.MergePatchType), string(types.ApplyYAMLPatchType)}
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		supported = append(supported, string(types.ApplyCBORPatchType))
	}
	return supported
}
