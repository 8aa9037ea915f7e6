package crd

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"byre/apiserver/endpoints"
	"byre/apiserver/objectstore"
)

// shared is what the instances of all definitions are served with.
type shared struct {
	scheme    *runtime.Scheme
	storage   objectstore.GetterConfig
	serving   endpoints.Serving
	converter *conversion.CRConverterFactory
	// conversions has what webhooks have converted.
	conversions *conversions
	// read returns a definition not older than a resourceVersion, or errReplaced if
	// there is none.
	read func(ctx context.Context, name, resourceVersion string) (*source, error)
}

// instances serves what one definition defines, by one spec and one set of
// accepted names: when these change, another takes its place. Everything is made
// when it is first needed, and all of it of one source.
type instances struct {
	*shared

	// terminating is set when the definition is being deleted: what exists can
	// still be read, changed and deleted, but nothing can be created.
	terminating atomic.Bool
	// ending begins when the instances are served by another, or by nobody, any
	// more. Requests that are under way finish.
	ending *objectstore.Ending

	mu sync.Mutex
	// crd is the definition in its last state.
	crd      *apiextensionsv1.CustomResourceDefinition
	parts    *parts              // nil until needed; then it has the source
	versions map[string]*version // by name
}

func newInstances(s *shared, crd *apiextensionsv1.CustomResourceDefinition) *instances {
	i := &instances{shared: s, ending: objectstore.NewEnding(), versions: map[string]*version{}}
	i.adopt(crd)
	return i
}

// adopt takes over a later state of the definition, of the same spec: nothing
// keeps the one before in memory then.
func (i *instances) adopt(crd *apiextensionsv1.CustomResourceDefinition) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.crd = crd
	i.terminating.Store(apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Terminating))
}

// version returns what serves a version, which must be served or stored. It fails
// with errReplaced if the definition has another spec by now, and nothing of this
// one is there yet.
func (i *instances) version(ctx context.Context, name string) (*version, error) {
	if err := i.prepare(ctx); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if v, ok := i.versions[name]; ok {
		return v, nil
	}
	v, err := i.newVersion(i.parts, name)
	if err != nil {
		return nil, fmt.Errorf("%s, version %s: %w", i.crd.Name, name, err)
	}
	i.versions[name] = v
	return v, nil
}

// prepare makes the parts, if it was not done before.
func (i *instances) prepare(ctx context.Context) error {
	i.mu.Lock()
	crd, done := i.crd, i.parts != nil
	i.mu.Unlock()
	if done {
		return nil
	}
	from, whole, err := i.sourceOf(ctx, crd)
	if err != nil {
		return err
	}
	parts, err := i.newParts(crd, from, whole)
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.parts == nil {
		i.parts = parts
	}
	return nil
}

// stored returns what serves the version that instances are stored in.
func (i *instances) stored(ctx context.Context) (*version, error) {
	i.mu.Lock()
	name, err := apihelpers.GetCRDStorageVersion(i.crd)
	i.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return i.version(ctx, name)
}

// parts are what the versions of a definition have in common.
type parts struct {
	codecs
	source *source
	stored schema.GroupVersion
	// form is that of the records; views tell, by version, what is made of them.
	form  string
	views map[string]string
	// unsafe converts without copying what it converts; the one of codecs
	// copies.
	unsafe runtime.ObjectConvertor
	// conversions is nil where no webhook converts, and listKind unused.
	conversions *conversions
	listKind    string
	types       fieldTypes
	equivalents runtime.EquivalentResourceRegistry
	replicas    managedfields.ResourcePathMappings
}

// newParts makes the parts of crd, which is stripped; from has it whole.
func (s *shared) newParts(crd *apiextensionsv1.CustomResourceDefinition, from *source, whole *apiextensionsv1.CustomResourceDefinition) (*parts, error) {
	names := crd.Status.AcceptedNames
	if names.Plural == "" || names.Singular == "" || names.Kind == "" || names.ListKind == "" {
		return nil, fmt.Errorf("%s: not all of its names are accepted", crd.Name)
	}
	stored, err := apihelpers.GetCRDStorageVersion(crd)
	if err != nil {
		return nil, err
	}
	safe, unsafe, err := s.converter.NewConverter(crd)
	if err != nil {
		return nil, fmt.Errorf("%s: conversion: %w", crd.Name, err)
	}
	form := formOf(s.storage.Program, whole, stored)
	p := &parts{
		codecs:      codecs{scheme: s.scheme, schemas: newSchemas(crd, from), convert: safe},
		source:      from,
		stored:      schema.GroupVersion{Group: crd.Spec.Group, Version: stored},
		form:        form,
		views:       viewsOf(form, whole),
		unsafe:      unsafe,
		types:       newFieldTypes(from),
		equivalents: equivalents(crd),
		replicas:    replicasPaths(crd),
		listKind:    names.ListKind,
	}
	if crd.Spec.Conversion.Strategy == apiextensionsv1.WebhookConverter {
		p.conversions = s.conversions
	}
	return p, nil
}

// storageCodec is the codec between the store and what serves a version.
func (p *parts) storageCodec(version schema.GroupVersion) runtime.Codec {
	codec := p.storage(p.stored, version)
	if p.conversions == nil {
		return codec
	}
	return &convertingCodec{Codec: codec, parts: p, version: version}
}

// formOf names what the stored bytes of a definition's instances depend on: the
// program, the storage version, and its schema, by which they were pruned and
// defaulted. What else changes in a definition leaves the records as they are.
func formOf(program string, whole *apiextensionsv1.CustomResourceDefinition, stored string) string {
	return fmt.Sprintf("%s/%s/%s", program, stored,
		hashOf(whole.Spec.Names.Kind, whole.Spec.PreserveUnknownFields, versionSpec(whole, stored).Schema))
}

// viewsOf name, by version, what readers of that version make of records of a
// form. It depends on the version and on how it is converted to, but not on the
// certificates of who converts.
func viewsOf(form string, whole *apiextensionsv1.CustomResourceDefinition) map[string]string {
	conversion := whole.Spec.Conversion.DeepCopy()
	if conversion != nil && conversion.Webhook != nil && conversion.Webhook.ClientConfig != nil {
		conversion.Webhook.ClientConfig.CABundle = nil
	}
	views := map[string]string{}
	for _, v := range whole.Spec.Versions {
		views[v.Name] = fmt.Sprintf("%s/%s/%s", form, v.Name, hashOf(whole.UID, v, conversion))
	}
	return views
}

// release gives up what was not used since it was called last.
func (i *instances) release() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.parts == nil {
		return
	}
	i.parts.schemas.release()
	i.parts.types.release()
	for _, v := range i.versions {
		v.checks.release()
	}
}

// equivalents tells admission that the versions are of one resource.
func equivalents(crd *apiextensionsv1.CustomResourceDefinition) runtime.EquivalentResourceRegistry {
	registry := runtime.NewEquivalentResourceRegistry()
	names := crd.Status.AcceptedNames
	for _, v := range crd.Spec.Versions {
		gv := schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}
		resource := gv.WithResource(names.Plural)
		registry.RegisterKindFor(resource, "", gv.WithKind(names.Kind))
		if hasStatus(&v) {
			registry.RegisterKindFor(resource, "status", gv.WithKind(names.Kind))
		}
		if hasScale(&v) {
			registry.RegisterKindFor(resource, "scale", scaleKind)
		}
	}
	return registry
}

// scaleKind is the kind of every scale subresource.
var scaleKind = autoscalingv1.SchemeGroupVersion.WithKind("Scale")

func versionSpec(crd *apiextensionsv1.CustomResourceDefinition, name string) *apiextensionsv1.CustomResourceDefinitionVersion {
	for i := range crd.Spec.Versions {
		if crd.Spec.Versions[i].Name == name {
			return &crd.Spec.Versions[i]
		}
	}
	return nil
}

func hasStatus(v *apiextensionsv1.CustomResourceDefinitionVersion) bool {
	return v.Subresources != nil && v.Subresources.Status != nil
}

func hasScale(v *apiextensionsv1.CustomResourceDefinitionVersion) bool {
	return v.Subresources != nil && v.Subresources.Scale != nil
}
