package instances

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
)

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
func (e *Environment) derive(crd *apiextensionsv1.CustomResourceDefinition, source Source, whole *apiextensionsv1.CustomResourceDefinition) (*derived, error) {
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
