package instances

import (
	"fmt"
	"io"
	"slices"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/crdserverscheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// codecs encode and decode the instances of one definition.
type codecs struct {
	scheme  *runtime.Scheme // of options and Status
	schemas *schemas
	convert runtime.ObjectConvertor
}

// storage is the codec between the store and the handlers of a version.
//
// Invariant: what it encodes is what a decode of the same bytes would give. The encoder
// prunes and defaults for this, also where admission or a conversion has changed the
// object last. Otherwise instances answered from the stored bytes would differ from
// those that are decoded.
func (c codecs) storage(stored, version schema.GroupVersion) runtime.Codec {
	return versioning.NewCodec(
		roundTripEncoder{Encoder: unstructured.UnstructuredJSONScheme, coercer: coercer{schemas: c.schemas},
			defaulter: c.defaulter()},
		c.decoder(),
		coercingConvertor{ObjectConvertor: c.convert, coercer: coercer{schemas: c.schemas}},
		creater{},
		crdserverscheme.NewUnstructuredObjectTyper(),
		c.defaulter(),
		stored,
		version,
		"crd",
	)
}

// decoder decodes what is stored.
func (c codecs) decoder() runtime.Decoder {
	return coercingDecoder{Decoder: unstructured.UnstructuredJSONScheme,
		coercer: coercer{schemas: c.schemas, repair: true}}
}

func (c codecs) defaulter() defaulter { return defaulter{schemas: c.schemas, others: c.scheme} }

// roundTripEncoder prunes and defaults an object as decoding would, and encodes it. It
// changes the object, which nobody uses after it was stored.
type roundTripEncoder struct {
	runtime.Encoder
	coercer   coercer
	defaulter defaulter
}

func (e roundTripEncoder) Encode(object runtime.Object, w io.Writer) error {
	if u, ok := object.(*unstructured.Unstructured); ok {
		if _, err := e.coercer.apply(u); err != nil {
			return err
		}
		e.defaulter.Default(u)
	}
	return e.Encoder.Encode(object, w)
}

// coercingDecoder coerces what it decodes.
type coercingDecoder struct {
	runtime.Decoder
	coercer coercer
}

func (d coercingDecoder) Decode(
	data []byte, defaults *schema.GroupVersionKind, into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	object, kind, err := d.Decoder.Decode(data, defaults, into)
	var complaints []error
	if err != nil {
		strict, ok := runtime.AsStrictDecodingError(err)
		if !ok || object == nil {
			return nil, kind, err
		}
		complaints = strict.Errors()
	}
	var unknown []string
	if u, ok := object.(*unstructured.Unstructured); ok {
		if unknown, err = d.coercer.apply(u); err != nil {
			return nil, kind, err
		}
	}
	if !d.coercer.strict {
		return object, kind, nil
	}
	for _, path := range unknown {
		complaints = append(complaints, fmt.Errorf(`unknown field "%s"`, path))
	}
	if len(complaints) > 0 {
		return object, kind, runtime.NewStrictDecodingError(complaints)
	}
	return object, kind, nil
}

// coercingConvertor coerces what it has converted: a webhook may answer anything.
type coercingConvertor struct {
	runtime.ObjectConvertor
	coercer coercer
}

func (c coercingConvertor) Convert(in, out, context any) error {
	if err := c.ObjectConvertor.Convert(in, out, context); err != nil {
		return err
	}
	if u, ok := out.(*unstructured.Unstructured); ok {
		_, err := c.coercer.apply(u)
		return err
	}
	return nil
}

func (c coercingConvertor) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	out, err := c.ObjectConvertor.ConvertToVersion(in, target)
	if err != nil {
		return nil, err
	}
	if u, ok := out.(*unstructured.Unstructured); ok {
		if _, err := c.coercer.apply(u); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// negotiated is the negotiated serializer of requests and responses.
type negotiated struct {
	codecs
	media []runtime.SerializerInfo
}

func (c codecs) negotiated(typer runtime.ObjectTyper) negotiated {
	return negotiated{codecs: c, media: mediaTypes(typer)}
}

func (n negotiated) SupportedMediaTypes() []runtime.SerializerInfo { return n.media }

func (n negotiated) EncoderForVersion(encoder runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	return versioning.NewCodec(encoder, nil, n.convert, n.scheme, n.scheme, n.scheme, gv, nil, "crdNegotiatedSerializer")
}

func (n negotiated) DecoderToVersion(decoder runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	s, ok := decoder.(*json.Serializer)
	coercing := coercingDecoder{Decoder: decoder, coercer: coercer{schemas: n.schemas, strict: ok && s.IsStrict()}}
	return versioning.NewCodec(nil, coercing, runtime.UnsafeObjectConvertor(n.scheme), n.scheme, n.scheme,
		n.defaulter(), nil, gv, "unstructuredNegotiatedSerializer")
}

// standard are the media types of instances. Protobuf encodes only the Tables and the
// Status that are sent in place of them.
func (n negotiated) standard() []runtime.SerializerInfo {
	return slices.DeleteFunc(slices.Clone(n.media), func(info runtime.SerializerInfo) bool {
		return info.MediaType == runtime.ContentTypeProtobuf
	})
}

func mediaTypes(typer runtime.ObjectTyper) []runtime.SerializerInfo {
	gate := utilfeature.DefaultFeatureGate
	text := func(options json.SerializerOptions) runtime.Serializer {
		return json.NewSerializerWithOptions(json.DefaultMetaFactory, creater{}, typer, options)
	}
	infos := []runtime.SerializerInfo{
		{
			MediaType:        runtime.ContentTypeJSON,
			MediaTypeType:    "application",
			MediaTypeSubType: "json",
			EncodesAsText:    true,
			Serializer:       text(json.SerializerOptions{StreamingCollectionsEncoding: true}),
			PrettySerializer: text(json.SerializerOptions{Pretty: true}),
			StrictSerializer: text(json.SerializerOptions{Strict: true, StreamingCollectionsEncoding: true}),
			StreamSerializer: &runtime.StreamSerializerInfo{
				EncodesAsText: true,
				Serializer:    text(json.SerializerOptions{}),
				Framer:        json.Framer,
			},
		},
		{
			MediaType:        runtime.ContentTypeYAML,
			MediaTypeType:    "application",
			MediaTypeSubType: "yaml",
			EncodesAsText:    true,
			Serializer:       text(json.SerializerOptions{Yaml: true}),
			StrictSerializer: text(json.SerializerOptions{Yaml: true, Strict: true}),
		},
		{
			MediaType:        runtime.ContentTypeProtobuf,
			MediaTypeType:    "application",
			MediaTypeSubType: "vnd.kubernetes.protobuf",
			Serializer: protobuf.NewSerializerWithOptions(creater{}, typer, protobuf.SerializerOptions{
				StreamingCollectionsEncoding: true,
			}),
			StreamSerializer: &runtime.StreamSerializerInfo{
				Serializer: protobuf.NewRawSerializer(creater{}, typer),
				Framer:     protobuf.LengthDelimitedFramer,
			},
		},
	}
	if gate.Enabled(features.CBORServingAndStorage) {
		infos = append(infos, cbor.NewSerializerInfo(creater{}, typer))
	}
	return infos
}

// creater makes an unstructured object of any kind.
type creater struct{}

func (creater) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	return object, nil
}

// newTyper returns a typer of instances, which are unstructured, and of the options of
// requests. Clients see the errors of the last typer: as upstream's, they name the
// scheme of the options.
func newTyper(options runtime.ObjectTyper) runtime.ObjectTyper {
	return runtime.MultiObjectTyper{crdserverscheme.NewUnstructuredObjectTyper(), options}
}

// newOptionsScheme returns a scheme of the options that requests for a version carry.
func newOptionsScheme(gv schema.GroupVersion) *runtime.Scheme {
	scheme := runtime.NewScheme()
	scheme.AddUnversionedTypes(gv, &metav1.ListOptions{}, &metav1.GetOptions{}, &metav1.DeleteOptions{})
	return scheme
}

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
