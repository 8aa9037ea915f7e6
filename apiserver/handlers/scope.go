package handlers

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"byre/apiserver/handlers/managedfields"
)

// newScope builds the request scope, with which upstream's handlers serve the resource.
// adjust, if not nil, may change any field.
func (r *Resource) newScope(adjust func(string, *handlers.RequestScope) error) (*handlers.RequestScope, error) {
	tables, isTableConvertor := r.storage.(rest.TableConvertor)
	if _, lists := r.storage.(rest.Lister); lists && !isTableConvertor {
		return nil, fmt.Errorf("%s: %q lists and so must implement rest.TableConvertor", r.gv, r.path)
	}
	acceptor, _ := r.storage.(rest.GroupVersionAcceptor)
	scope := &handlers.RequestScope{
		Namer: handlers.ContextBasedNaming{
			Namer:         runtime.Namer(meta.NewAccessor()),
			ClusterScoped: !r.namespaced,
		},
		Serializer:      r.types.Serializer,
		ParameterCodec:  r.types.ParameterCodec,
		Creater:         r.types.Creater,
		Convertor:       r.types.Convertor,
		Defaulter:       r.types.Defaulter,
		Typer:           r.types.Typer,
		UnsafeConvertor: r.types.UnsafeConvertor,
		Authorizer:      r.serving.Authorizer,

		EquivalentResourceMapper: r.serving.EquivalentResources,
		TableConvertor:           tables,

		Resource:    r.gv.WithResource(r.resource),
		Subresource: r.subresource,
		Kind:        r.kind,

		AcceptsGroupVersionDelegate: acceptor,

		// The group is that of the kind. A subresource may have a kind of another
		// group (Scale, Eviction).
		HubGroupVersion:  schema.GroupVersion{Group: r.kind.Group, Version: runtime.APIVersionInternal},
		MetaGroupVersion: metav1.SchemeGroupVersion,

		MaxRequestBodyBytes: maxRequestBodyBytes,
	}
	if adjust != nil {
		if err := adjust(r.path, scope); err != nil {
			return nil, err
		}
	}
	fields := managedfields.Config{Kind: r.kind, Subresource: r.subresource, Creater: r.types.Creater}
	if scope.FieldManager == nil && r.serving.TypeConverter != nil {
		if err := r.setFieldManager(scope, &fields); err != nil {
			return nil, err
		}
	}
	fields.Upstream = scope.FieldManager
	r.fields = managedfields.New(fields)
	return scope, nil
}

// setFieldManager sets the scope's field manager to upstream's, and configures what computes
// managed fields in its place.
func (r *Resource) setFieldManager(scope *handlers.RequestScope, fields *managedfields.Config) error {
	reset, err := r.resetFields()
	if err != nil {
		return err
	}
	scope.FieldManager, err = upstream.NewDefaultFieldManager(
		r.serving.TypeConverter, r.types.UnsafeConvertor, r.types.Defaulter, r.types.Creater,
		r.kind, scope.HubGroupVersion, r.subresource, reset)
	if err != nil {
		return fmt.Errorf("%s: field manager of %q: %w", r.gv, r.path, err)
	}
	fields.Types, fields.Converter = r.serving.TypeConverter, r.types.UnsafeConvertor
	fields.Ignored = reset[fieldpath.APIVersion(r.kind.GroupVersion().String())]
	if r.subresource == "" {
		fields.FieldSets = r.serving.FieldSets
	}
	if r.kind.Kind == r.docKind {
		fields.ParsedSets = r.serving.ParsedSets
	}
	return nil
}

// resetFields returns the fields that the storage's strategy resets in a write, such as the
// status in a write of the main resource. The field manager ignores them, so that nobody
// becomes the owner of a field by a write that did not change it.
func (r *Resource) resetFields() (map[fieldpath.APIVersion]fieldpath.Filter, error) {
	bySet, isSet := r.storage.(rest.ResetFieldsStrategy)
	byFilter, isFilter := r.storage.(rest.ResetFieldsFilterStrategy)
	switch {
	case isSet && isFilter:
		return nil, fmt.Errorf("%s: %q must not name its reset fields both by set and by filter", r.gv, r.path)
	case isSet:
		return fieldpath.NewExcludeFilterSetMap(bySet.GetResetFields()), nil
	case isFilter:
		return byFilter.GetResetFieldsFilter(), nil
	default:
		return nil, nil
	}
}
