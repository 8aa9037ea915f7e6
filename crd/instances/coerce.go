package instances

import (
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// coercer gives unstructured objects what decoding into a Go type gives typed ones: it
// validates metadata, prunes fields that the schema does not specify, and removes nulls
// from fields that are not nullable. It follows unstructuredSchemaCoercer of upstream's
// customresource_handler.go.
type coercer struct {
	schemas *schemas
	// repair is set for stored objects: malformed metadata, which old servers accepted,
	// is dropped instead of refused, and a missing generation becomes 1.
	repair bool
	// strict makes apply return the paths of the fields that it drops.
	strict bool
}

// apply coerces an object in place and returns the paths of unknown fields if strict is
// set. Of objects of other kinds (the same codecs decode options) it validates only the
// metadata.
func (c coercer) apply(object *unstructured.Unstructured) ([]string, error) {
	content := object.UnstructuredContent()
	kind, hasKind, err := unstructured.NestedString(content, "kind")
	if err != nil {
		return nil, err
	}
	apiVersion, hasVersion, err := unstructured.NestedString(content, "apiVersion")
	if err != nil {
		return nil, err
	}
	meta, hasMeta, unknown, err := objectmeta.GetObjectMetaWithOptions(object.Object, objectmeta.ObjectMetaOptions{
		DropMalformedFields:     c.repair,
		ReturnUnknownFieldPaths: c.strict,
	})
	if err != nil {
		return nil, err
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, err
	}
	if gv.Group == c.schemas.kind.Group && kind == c.schemas.kind.Kind {
		more, err := c.applySchema(object.Object, gv.Version, meta)
		if err != nil {
			return nil, err
		}
		unknown = append(unknown, more...)
	}
	// The schema need not specify these members: pruning may have dropped them.
	if hasKind {
		object.SetKind(kind)
	}
	if hasVersion {
		object.SetAPIVersion(apiVersion)
	}
	if hasMeta {
		if err := objectmeta.SetObjectMeta(object.Object, meta); err != nil {
			return nil, err
		}
	}
	return unknown, nil
}

func (c coercer) applySchema(content map[string]any, version string, meta *metav1.ObjectMeta) ([]string, error) {
	structural, err := c.schemas.of(version)
	if err != nil {
		return nil, err
	}
	var unknown []string
	if !c.schemas.preserveUnknown {
		unknown = pruning.PruneWithOptions(content, structural, true,
			structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: c.strict})
		structuraldefaulting.PruneNonNullableNullsWithoutDefaults(content, structural)
	}
	failure, paths := objectmeta.CoerceWithOptions(nil, content, structural, false, objectmeta.CoerceOptions{
		DropInvalidFields:       c.repair,
		ReturnUnknownFieldPaths: c.strict,
	})
	if failure != nil {
		return nil, failure
	}
	if c.repair && meta.Generation == 0 {
		meta.Generation = 1
	}
	return append(unknown, paths...), nil
}

// defaulter applies the defaults of the schema of an object's version.
type defaulter struct {
	schemas *schemas
	// others defaults objects of other kinds.
	others runtime.ObjectDefaulter
}

func (d defaulter) Default(in runtime.Object) {
	object, ok := in.(runtime.Unstructured)
	if !ok || object.GetObjectKind().GroupVersionKind().GroupKind() != d.schemas.kind {
		d.others.Default(in)
		return
	}
	// Default returns no error. The coercer, which runs before, reports a schema that
	// cannot be used.
	structural, err := d.schemas.of(object.GetObjectKind().GroupVersionKind().Version)
	if err != nil {
		return
	}
	structuraldefaulting.Default(object.UnstructuredContent(), structural)
}
