package crd

import (
	"fmt"
	"net/http"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
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
	// handlers has what serves each verb, by subresource; "" is the resource
	// itself.
	handlers map[string]map[string]http.Handler
	main     *customresource.REST
	checks   *lazy[checks]
}

// versionBuilder makes one version. It does what getOrCreateServingInfoFor of
// upstream's customresource_handler.go does for all versions at once.
type versionBuilder struct {
	*instances
	parts *parts
	spec  *apiextensionsv1.CustomResourceDefinitionVersion
	gv    schema.GroupVersion
	typer runtime.ObjectTyper
}

func (i *instances) newVersion(p *parts, name string) (*version, error) {
	gv := schema.GroupVersion{Group: i.crd.Spec.Group, Version: name}
	b := &versionBuilder{instances: i, parts: p, spec: versionSpec(i.crd, name), gv: gv, typer: newTyper(newOptionsScheme(gv))}
	if b.spec == nil {
		return nil, fmt.Errorf("no such version")
	}
	return b.build()
}

func (b *versionBuilder) build() (*version, error) {
	kind := b.gv.WithKind(b.crd.Status.AcceptedNames.Kind)
	typer, parts := b.typer, b.parts
	v := &version{
		handlers: map[string]map[string]http.Handler{},
		checks: newLazy(func() (checks, error) {
			whole, err := parts.source.definition()
			if err != nil {
				return checks{}, err
			}
			return newChecks(typer, parts, whole, kind)
		}),
	}
	storages, err := b.storages(v)
	if err != nil {
		return nil, err
	}
	config := b.config(v, storages)
	for path := range storages {
		resource, err := endpoints.NewResource(config, path)
		if err != nil {
			return nil, err
		}
		_, subresource, _ := strings.Cut(path, "/")
		v.handlers[subresource] = resource.Verbs()
	}
	return v, nil
}

func (b *versionBuilder) config(v *version, storages map[string]rest.Storage) endpoints.VersionConfig {
	serving := b.serving
	serving.Admission = admit{serving.Admission, &b.terminating}
	serving.TypeConverter = nil
	// What endpoints enters in here goes nowhere: parts.equivalents knows all
	// versions already.
	serving.EquivalentResources = runtime.NewEquivalentResourceRegistry()
	options := newOptionsScheme(b.gv)
	serializer := b.parts.negotiated(b.typer)
	return endpoints.VersionConfig{
		GroupVersion: b.gv,
		Storage:      storages,
		Types: endpoints.Types{
			Serializer:      serializer,
			ParameterCodec:  runtime.NewParameterCodec(options),
			Creater:         creater{},
			Convertor:       b.parts.convert,
			UnsafeConvertor: b.parts.unsafe,
			Defaulter:       defaulter{schemas: b.parts.schemas, others: options},
			Typer:           b.typer,
		},
		Serving:    serving,
		PatchTypes: patchTypes(),
		Warnings:   deprecationWarnings(b.crd, b.spec),
		Adjust: func(_ string, scope *handlers.RequestScope) error {
			scope.StandardSerializers = serializer.standard()
			return b.adjust(v.main, scope)
		},
	}
}

// adjust gives a scope what is special about custom resources.
func (b *versionBuilder) adjust(main *customresource.REST, scope *handlers.RequestScope) error {
	scope.EquivalentResourceMapper = b.parts.equivalents
	// The version itself is what instances are held in in memory.
	scope.HubGroupVersion = b.gv
	var reset map[fieldpath.APIVersion]*fieldpath.Set
	switch scope.Subresource {
	case "":
		reset = main.GetResetFields()
	case "status":
		reset = b.statusResetFields()
		scope.TableConvertor = main
	case "scale":
		scope.Serializer = endpoints.NewCodecs(scale.NewScaleConverter().Scheme())
		columns, err := tableconvertor.New(scaleColumns(b.spec))
		if err != nil {
			return err
		}
		scope.TableConvertor = columns
	}
	var err error
	scope.FieldManager, err = managedfields.NewDefaultCRDFieldManager(b.parts.types, scope.Convertor, scope.Defaulter,
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

// storages makes upstream's registries for the version and its subresources.
func (b *versionBuilder) storages(v *version) (map[string]rest.Storage, error) {
	names := b.crd.Status.AcceptedNames
	kind := b.gv.WithKind(names.Kind)
	sub, err := newSubresources(b.spec)
	if err != nil {
		return nil, err
	}
	table, err := tableconvertor.New(columns(b.spec))
	if err != nil {
		klog.V(2).InfoS("Printer columns that can't be used are left out", "definition", b.crd.Name, "version", b.spec.Name, "err", err)
	}
	light := customresource.NewStrategy(b.typer, b.crd.Spec.Scope == apiextensionsv1.NamespaceScoped, kind,
		nil, nil, nil, sub.status, sub.scale, b.spec.SelectableFields)
	storage, err := customresource.NewStorage(
		b.gv.WithResource(names.Plural).GroupResource(),
		b.gv.WithResource(names.Singular).GroupResource(),
		kind, b.gv.WithKind(names.ListKind),
		light,
		&restOptionsGetter{
			config:  b.storage,
			parts:   b.parts,
			version: b.gv,
			ending:  b.ending,

			selectable: b.spec.SelectableFields,
		},
		names.Categories, table, b.parts.replicas,
	)
	if err != nil {
		return nil, err
	}
	v.main = storage.CustomResource
	whole := strategy{light, func() (createUpdate, error) { c, err := v.checks.get(); return c.whole, err }}
	v.main.CreateStrategy, v.main.UpdateStrategy, v.main.ResetFieldsStrategy = whole, whole, whole

	storages := map[string]rest.Storage{names.Plural: v.main}
	if sub.status != nil {
		storages[names.Plural+"/status"] = newStatusStorage(v.main.Store, strategy{
			customresource.NewStatusStrategy(light),
			func() (createUpdate, error) { c, err := v.checks.get(); return c.status, err },
		})
	}
	if storage.Scale != nil {
		storages[names.Plural+"/scale"] = scaleStorage{storage.Scale}
	}
	return storages, nil
}

// patchTypes are all but strategic merge patch, which needs Go types.
func patchTypes() []string {
	supported := []string{string(types.JSONPatchType), string(types.MergePatchType), string(types.ApplyYAMLPatchType)}
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		supported = append(supported, string(types.ApplyCBORPatchType))
	}
	return supported
}
