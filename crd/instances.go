package crd

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"byre/apiserver/endpoints"
	"byre/apiserver/storage"
)

// shared is what the instances of all definitions are served with.
type shared struct {
	scheme    *runtime.Scheme
	storage   storage.GetterConfig
	serving   endpoints.Serving
	converter *conversion.CRConverterFactory
	// load reads a definition with its schemas, as it is now or was a moment ago.
	load func(ctx context.Context, name string) (*apiextensionsv1.CustomResourceDefinition, error)
}

// instances serves what one definition defines, by one spec of it: when the
// spec changes, another takes its place. Everything is made when it is first
// needed.
type instances struct {
	*shared

	// terminating is set when the definition is being deleted: what exists can
	// still be read, changed and deleted, but nothing can be created.
	terminating atomic.Bool
	// current ends when the instances are served by another, or by nobody, any
	// more. Watches end with it; requests that are under way finish.
	current context.Context
	retire  context.CancelFunc

	mu sync.Mutex
	// crd is the definition in its last state.
	crd      *apiextensionsv1.CustomResourceDefinition
	parts    *parts              // nil until needed
	versions map[string]*version // by name
}

func newInstances(s *shared, crd *apiextensionsv1.CustomResourceDefinition) *instances {
	i := &instances{shared: s, versions: map[string]*version{}}
	i.current, i.retire = context.WithCancel(context.Background())
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

// version returns what serves a version, which must be served or stored.
func (i *instances) version(name string) (*version, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if v, ok := i.versions[name]; ok {
		return v, nil
	}
	if i.parts == nil {
		parts, err := i.newParts()
		if err != nil {
			return nil, err
		}
		i.parts = parts
	}
	v, err := i.newVersion(i.parts, name)
	if err != nil {
		return nil, fmt.Errorf("%s, version %s: %w", i.crd.Name, name, err)
	}
	i.versions[name] = v
	return v, nil
}

// stored returns what serves the version that instances are stored in.
func (i *instances) stored() (*version, error) {
	i.mu.Lock()
	name, err := apihelpers.GetCRDStorageVersion(i.crd)
	i.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return i.version(name)
}

// parts are what the versions of a definition have in common.
type parts struct {
	codecs
	stored schema.GroupVersion
	form   string
	// unsafe converts without copying what it converts; the one of codecs
	// copies.
	unsafe      runtime.ObjectConvertor
	types       fieldTypes
	equivalents runtime.EquivalentResourceRegistry
	replicas    managedfields.ResourcePathMappings
}

func (i *instances) newParts() (*parts, error) {
	names := i.crd.Status.AcceptedNames
	if names.Plural == "" || names.Singular == "" || names.Kind == "" || names.ListKind == "" {
		return nil, fmt.Errorf("%s: not all of its names are accepted", i.crd.Name)
	}
	stored, err := apihelpers.GetCRDStorageVersion(i.crd)
	if err != nil {
		return nil, err
	}
	safe, unsafe, err := i.converter.NewConverter(i.crd)
	if err != nil {
		return nil, fmt.Errorf("%s: conversion: %w", i.crd.Name, err)
	}
	load := i.load()
	return &parts{
		codecs:      codecs{scheme: i.scheme, schemas: newSchemas(i.crd, load), convert: safe},
		stored:      schema.GroupVersion{Group: i.crd.Spec.Group, Version: stored},
		form:        form(i.shared.storage.Program, i.crd, stored),
		unsafe:      unsafe,
		types:       newFieldTypes(i.crd.Name, load),
		equivalents: equivalents(i.crd),
		replicas:    replicasPaths(i.crd),
	}, nil
}

// form names what the stored bytes of a definition's instances depend on: the
// program, the storage version, and the schema, which says what is pruned and
// defaulted and of which there is one in every generation.
func form(program string, crd *apiextensionsv1.CustomResourceDefinition, stored string) string {
	return fmt.Sprintf("%s/%s/%.8s.%d", program, stored, crd.UID, crd.Generation)
}

// load returns a function that reads the definition with its schemas. They may
// be those of a later generation, when that is about to be served instead.
func (i *instances) load() func() (*apiextensionsv1.CustomResourceDefinition, error) {
	load, name, uid := i.shared.load, i.crd.Name, i.crd.UID
	return func() (*apiextensionsv1.CustomResourceDefinition, error) {
		ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
		defer cancel()
		whole, err := load(ctx, name)
		if err == nil && whole.UID != uid {
			err = fmt.Errorf("%s has been replaced", name)
		}
		return whole, err
	}
}

// loadTimeout bounds the reading of a definition for what has no context.
const loadTimeout = 10 * time.Second

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
