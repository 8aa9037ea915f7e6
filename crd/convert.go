package crd

import (
	"bytes"
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// convertingCodec is the storage codec of a version that a webhook converts to. What
// the webhook makes of a stored value is shared by all who decode it.
type convertingCodec struct {
	runtime.Codec
	parts   *parts
	version schema.GroupVersion
}

// Decode decodes a stored value to the version.
func (c *convertingCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	object, ok := into.(*unstructured.Unstructured)
	if !ok || c.isOfVersion(data) {
		return c.Codec.Decode(data, defaults, into)
	}
	converted, err := c.parts.conversions.one(c.view(), data, c.convert)
	if err != nil {
		return nil, nil, err
	}
	if err := object.UnmarshalJSON(converted); err != nil {
		return nil, nil, err
	}
	kind := object.GroupVersionKind()
	return object, &kind, nil
}

// ahead converts values together that Decode is going to be asked for; see
// storage.Config.
func (c *convertingCodec) ahead(ctx context.Context, values [][]byte) {
	var others [][]byte
	for _, value := range values {
		if !c.isOfVersion(value) {
			others = append(others, value)
		}
	}
	c.parts.conversions.ahead(ctx, c.view(), others, c.convert)
}

func (c *convertingCodec) view() string { return c.parts.views[c.version.Version] }

// isOfVersion may be wrong in saying no: such a value is converted to what it is.
// Members are sorted in what is stored, so that the version comes first.
func (c *convertingCodec) isOfVersion(data []byte) bool {
	rest, ok := bytes.CutPrefix(data, []byte(`{"apiVersion":"`+c.version.String()+`"`))
	return ok && len(rest) > 0
}

// convert has stored values converted, by one call of the webhook.
func (c *convertingCodec) convert(values [][]byte) ([][]byte, error) {
	in := &unstructured.UnstructuredList{Items: make([]unstructured.Unstructured, len(values))}
	in.SetGroupVersionKind(c.parts.stored.WithKind(c.parts.listKind))
	decoder, defaulter := c.parts.decoder(), c.parts.defaulter()
	for i, value := range values {
		if _, _, err := decoder.Decode(value, nil, &in.Items[i]); err != nil {
			return nil, err
		}
		defaulter.Default(&in.Items[i])
	}
	items, err := c.convertItems(in)
	if err != nil {
		return nil, err
	}
	after := coercer{schemas: c.parts.schemas} // a webhook may answer anything
	converted := make([][]byte, len(items))
	for i := range items {
		if _, err := after.apply(&items[i]); err != nil {
			return nil, err
		}
		if converted[i], err = items[i].MarshalJSON(); err != nil {
			return nil, err
		}
	}
	return converted, nil
}

// convertItems converts one object as such: upstream words errors by what it is given.
func (c *convertingCodec) convertItems(in *unstructured.UnstructuredList) ([]unstructured.Unstructured, error) {
	if len(in.Items) > 1 {
		out, err := c.parts.unsafe.ConvertToVersion(in, c.version)
		if err != nil {
			return nil, err
		}
		return out.(*unstructured.UnstructuredList).Items, nil
	}
	out, err := c.parts.unsafe.ConvertToVersion(&in.Items[0], c.version)
	if err != nil {
		return nil, err
	}
	return []unstructured.Unstructured{*out.(*unstructured.Unstructured)}, nil
}
