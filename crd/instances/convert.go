package instances

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/storage/encoding"
)

// convertingCodec is the storage codec of a version that a webhook converts to. All who
// decode a stored value share what the webhook makes of it.
type convertingCodec struct {
	runtime.Codec
	codecs      codecs
	converter   *converter
	conversions *conversions
	// stored is the kind of a list of stored values.
	stored  schema.GroupVersionKind
	version schema.GroupVersion
	view    string // see derived.view
}

// Decode decodes a stored value to the version.
func (c *convertingCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	object, ok := into.(*unstructured.Unstructured)
	if !ok || c.isOfVersion(data) {
		return c.Codec.Decode(data, defaults, into)
	}
	converted, err := c.conversions.convertOne(c.currentView(), data, c.convert)
	if err != nil {
		return nil, nil, err
	}
	if err := object.UnmarshalJSON(converted); err != nil {
		return nil, nil, err
	}
	kind := object.GroupVersionKind()
	return object, &kind, nil
}

// convertAhead converts, in one call, values that Decode will be called with; see
// storage.Config.DecodeAhead.
func (c *convertingCodec) convertAhead(ctx context.Context, values [][]byte) {
	others := slices.DeleteFunc(slices.Clone(values), c.isOfVersion)
	c.conversions.convertAhead(ctx, c.currentView(), others, c.convert)
}

// currentView names what the webhook makes of stored values. Each change of the definition's
// spec is another view, so that a client that changes the definition has the webhook asked
// anew.
func (c *convertingCodec) currentView() string {
	return fmt.Sprintf("%s/%d", c.view, c.converter.current.Load().generation)
}

// isOfVersion tells whether a stored value is of the codec's version. Stored members are
// sorted, so that apiVersion comes first. A wrong no costs a needless conversion only.
func (c *convertingCodec) isOfVersion(data []byte) bool {
	rest, ok := bytes.CutPrefix(data, []byte(`{"apiVersion":"`+c.version.String()+`"`))
	return ok && len(rest) > 0
}

// convert calls the webhook once for all values.
func (c *convertingCodec) convert(values [][]byte) ([][]byte, error) {
	in := &unstructured.UnstructuredList{Items: make([]unstructured.Unstructured, len(values))}
	in.SetGroupVersionKind(c.stored)
	decoder, defaulter := c.codecs.decoder(), c.codecs.defaulter()
	for i, value := range values {
		if _, _, err := decoder.Decode(value, nil, &in.Items[i]); err != nil {
			return nil, err
		}
		defaulter.Default(&in.Items[i])
	}
	items, err := c.convertItems(in)
	if err != nil {
		return nil, &encoding.ConversionError{Err: err}
	}
	after := coercer{schemas: c.codecs.schemas} // a webhook may answer anything
	converted := make([][]byte, len(items))
	for i := range items {
		if _, err := after.apply(&items[i]); err != nil {
			return nil, &encoding.ConversionError{Err: err}
		}
		if converted[i], err = items[i].MarshalJSON(); err != nil {
			return nil, err
		}
	}
	return converted, nil
}

// convertItems converts a single object as an object, not as a list of one: upstream's
// error messages differ.
func (c *convertingCodec) convertItems(in *unstructured.UnstructuredList) ([]unstructured.Unstructured, error) {
	if len(in.Items) > 1 {
		out, err := c.converter.unsafe().ConvertToVersion(in, c.version)
		if err != nil {
			return nil, err
		}
		return out.(*unstructured.UnstructuredList).Items, nil
	}
	out, err := c.converter.unsafe().ConvertToVersion(&in.Items[0], c.version)
	if err != nil {
		return nil, err
	}
	return []unstructured.Unstructured{*out.(*unstructured.Unstructured)}, nil
}
