package handlers

import (
	"bytes"
	"context"
	"net/http"
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/util/apihelpers"

	"byre/apiserver/handlers/write"
	"byre/apiserver/storage"
	"byre/apiserver/storage/encoding"
	"byre/apiserver/storage/transcode"
)

// format is one way to answer the reads of a resource from bytes.
type format interface {
	// objects is the Format of the objects that the store is asked for.
	objects() *encoding.Format
	// mediaType is the media type of a response, streamType that of a watch.
	mediaType() string
	streamType() string
	// appendObject appends the response of a get.
	appendObject(dst []byte, o encoding.Encoded) []byte
	// writeList writes a list while it is read.
	writeList(ctx context.Context, out *answerWriter, list *storage.EncodedList) error
	// appendEvent appends the frame of one event of a watch. It returns the size of the
	// event in bytes, for the metrics.
	appendEvent(dst []byte, event string, o encoding.Encoded) ([]byte, int)
	// appendError appends the frame of the ERROR event that ends a watch.
	appendError(dst []byte, status *metav1.Status) []byte
}

// formats are the formats of one resource. Requests for a format that is nil are passed
// on to upstream's handlers.
type formats struct {
	json, protobuf format
	// metadata has the formats of PartialObjectMetadata, by its version.
	metadata map[schema.GroupVersion]metadataFormats
	// tables is nil where upstream's handlers serve tables.
	tables *tables
}

// metadataFormats are the formats of one kind, by encoding.
type metadataFormats struct{ json, protobuf format }

// newFormats makes the formats of a resource. Where the requested version is not the
// storage version, or the registry decorates objects, an object is decoded and encoded
// again, once for all readers.
func (e *encoded) newFormats() formats {
	kind := e.resource.kind
	stored := e.store.Stored()
	all := formats{metadata: map[schema.GroupVersion]metadataFormats{}}
	asStored := e.store.StorageVersion() == kind.GroupVersion() && e.registry.Decorator == nil
	full := stored
	if !asStored {
		full = encoding.JSON(kind.String(), e.encoder(runtime.ContentTypeJSON))
	}
	all.json = &jsonFormat{e: e, stored: full, head: e.listHead(kind.GroupVersion(), e.listKind)}
	for _, gv := range []schema.GroupVersion{metav1.SchemeGroupVersion, metav1beta1.SchemeGroupVersion} {
		all.metadata[gv] = metadataFormats{json: e.jsonMetadata(gv, stored)}
	}
	if e.unstructured {
		return all
	}
	encode := e.encoder(runtime.ContentTypeProtobuf)
	var whole *encoding.Format // in the storage version
	if asStored {
		full = encoding.Transcoded(kind.String()+" in protobuf", e.store.Message(), encode)
		whole = full
	} else {
		full = encoding.Protobuf(kind.String()+" in protobuf", encode)
	}
	protobuf := newProtobufFormat(full, kind.GroupVersion(), kind.Kind, e.listKind)
	all.protobuf, all.tables = protobuf, e.newTables(protobuf)
	for gv, metadata := range all.metadata {
		metadata.protobuf = e.protobufMetadata(gv, whole)
		all.metadata[gv] = metadata
	}
	return all
}

const (
	partialObjectMetadata = "PartialObjectMetadata"
	tableKind             = "Table"
)

func (e *encoded) jsonMetadata(gv schema.GroupVersion, stored *encoding.Format) format {
	f := &jsonFormat{e: e, stored: stored, partial: true, version: gv, head: e.listHead(gv, partialObjectMetadata+"List")}
	f.item = `{"kind":"` + partialObjectMetadata + `","apiVersion":"` + gv.String() + `","metadata":`
	if e.unstructured || e.convertsMetadata() {
		// The members of the metadata are stored in another order, or conversion
		// changes them.
		f.stored = encoding.JSON("metadata", func(_ context.Context, obj runtime.Object) ([]byte, error) {
			partial, err := write.Partial(obj, gv)
			if err != nil {
				return nil, err
			}
			// The store inserts the resourceVersion in the order of a Go type, which it
			// recognises by the leading kind.
			return marshalJSON(partial)
		})
	}
	return f
}

func (e *encoded) protobufMetadata(gv schema.GroupVersion, whole *encoding.Format) format {
	encode := func(_ context.Context, obj runtime.Object) ([]byte, error) {
		partial, err := write.Partial(obj, gv)
		if err != nil {
			return nil, err
		}
		return partial.Marshal()
	}
	f := encoding.MetadataProtobuf("metadata in protobuf", whole, partialMessage, encode)
	if e.convertsMetadata() {
		f = encoding.Protobuf("metadata in protobuf", encode)
	}
	return newProtobufFormat(f, gv, partialObjectMetadata, partialObjectMetadata+"List")
}

// convertsMetadata reports whether conversion to the version in memory changes the
// metadata. Upstream answers with the metadata of that version. The conversion turns
// the annotations deprecated.daemonset.template.generation and
// deprecated.deployment.rollback.to into fields of the spec
// (k8s.io/kubernetes/pkg/apis/apps/v1/conversion.go).
func (e *encoded) convertsMetadata() bool {
	kind := e.resource.kind.GroupKind()
	return !e.unstructured && kind.Group == "apps" && (kind.Kind == "DaemonSet" || kind.Kind == "Deployment")
}

// partialMessage transcodes metadata to PartialObjectMetadata.
var partialMessage = sync.OnceValue(func() *transcode.Message {
	return messageOf(reflect.TypeFor[metav1.PartialObjectMetadata]())
})

func messageOf(t reflect.Type) *transcode.Message {
	m, err := transcode.New(t)
	if err != nil {
		return nil // objects of the type are decoded
	}
	return m
}

// encoder returns a function that encodes objects in the resource's version, as
// upstream's handlers do.
func (e *encoded) encoder(mediaType string) func(context.Context, runtime.Object) ([]byte, error) {
	scope := e.resource.scope
	info, ok := runtime.SerializerInfoForMediaType(scope.Serializer.SupportedMediaTypes(), mediaType)
	if !ok {
		return nil
	}
	encoder := scope.Serializer.EncoderForVersion(info.Serializer, scope.Kind.GroupVersion())
	return func(_ context.Context, obj runtime.Object) ([]byte, error) {
		if e.registry.Decorator != nil {
			e.registry.Decorator(obj)
		}
		var buf bytes.Buffer
		if err := encoder.Encode(obj, &buf); err != nil {
			return nil, err
		}
		if mediaType == runtime.ContentTypeProtobuf {
			return messageIn(buf.Bytes())
		}
		return bytes.TrimRight(buf.Bytes(), "\n"), nil
	}
}

// negotiate returns the format of the response. It returns nil if upstream's handler
// must serve the request. partial is the kind by which the client asks for metadata:
// PartialObjectMetadata, or its list.
func (e *encoded) negotiate(req *http.Request, partial string) format {
	scope := e.resource.scope
	media, info, err := negotiation.NegotiateOutputMediaType(req, scope.Serializer, scope)
	if err != nil || auditsResponses(req) {
		return nil
	}
	all := &e.formats
	by := metadataFormats{all.json, all.protobuf}
	if media.Convert != nil {
		gv := media.Convert.GroupVersion()
		switch {
		case media.Convert.Kind == partial:
			by = all.metadata[gv]
		case media.Convert.Kind == tableKind && partial == partialObjectMetadata+"List" && all.tables != nil:
			by = metadataFormats{json: all.tables.format(req, gv)}
		default:
			return nil
		}
		accepted := media.Accepted.MediaType
		media, info, err = negotiation.NegotiateOutputMediaType(req, apihelpers.GetMetaInternalVersionCodecs(), scope)
		if err != nil || media.Accepted.MediaType != accepted {
			return nil
		}
	}
	// Where pretty printing is asked for, the negotiation has chosen the indenting
	// serializer.
	if info.PrettySerializer != nil && info.Serializer == info.PrettySerializer {
		return nil
	}
	switch media.Accepted.MediaType {
	case runtime.ContentTypeJSON:
		return by.json
	case runtime.ContentTypeProtobuf:
		return by.protobuf
	}
	return nil
}

// streams reports whether the request asks for a watch in the format.
func (e *encoded) streams(req *http.Request, f format) bool {
	info, err := negotiation.NegotiateOutputMediaTypeStream(req, e.resource.scope.Serializer, e.resource.scope)
	return err == nil && info.MediaType == f.mediaType()
}
