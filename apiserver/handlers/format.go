package handlers

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
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
	switch media.Accepted.MediaType {
	case runtime.ContentTypeJSON:
		// Where indented JSON is asked for, the negotiation has chosen the serializer that indents.
		if by.json != nil && info.PrettySerializer != nil && info.Serializer == info.PrettySerializer {
			return indented{by.json}
		}
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

// jsonFormat is JSON, either of whole objects or of their metadata only.
type jsonFormat struct {
	e      *encoded
	stored *encoding.Format
	// head is the text with which a list begins.
	head string
	// partial is true for metadata. item is the text with which an item begins, in
	// version.
	partial bool
	version schema.GroupVersion
	item    string
}

func (f *jsonFormat) objects() *encoding.Format { return f.stored }

func (f *jsonFormat) mediaType() string { return runtime.ContentTypeJSON }

func (f *jsonFormat) streamType() string { return runtime.ContentTypeJSON }

func (f *jsonFormat) append(dst []byte, o encoding.Encoded, typeMeta bool) []byte {
	if !f.partial {
		return o.AppendJSON(dst, typeMeta)
	}
	dst = append(dst, f.item...)
	return append(o.AppendMetadataJSON(dst), '}')
}

func (f *jsonFormat) appendObject(dst []byte, o encoding.Encoded) []byte {
	return append(f.append(dst, o, true), '\n')
}

func (f *jsonFormat) appendEvent(dst []byte, event string, o encoding.Encoded) ([]byte, int) {
	start := len(dst)
	dst = append(dst, `{"type":"`...)
	dst = append(dst, event...)
	dst = append(dst, `","object":`...)
	dst = f.append(dst, o, true)
	dst = append(dst, "}\n"...)
	return dst, len(dst) - start
}

// appendError appends a Status, which can always be encoded.
func (f *jsonFormat) appendError(dst []byte, status *metav1.Status) []byte {
	text, _ := json.Marshal(status)
	dst = append(dst, `{"type":"`...)
	dst = append(dst, apiwatch.Error...)
	dst = append(dst, `","object":`...)
	dst = append(dst, text...)
	return append(dst, "}\n"...)
}

func (f *jsonFormat) writeList(_ context.Context, out *answerWriter, list *storage.EncodedList) error {
	out.buf = f.appendHead(out.buf, list)
	isEmpty := true
	for object, err := range list.Items {
		if err != nil {
			return err
		}
		switch {
		case !isEmpty:
			out.buf = append(out.buf, ',')
		case f.partial:
			out.buf = append(out.buf, '[')
		}
		isEmpty = false
		out.buf = f.append(out.buf, object, false)
		if out.flush(); out.err != nil {
			return nil // the client is gone
		}
	}
	switch {
	case !isEmpty || !f.partial:
		out.buf = append(out.buf, "]}\n"...)
	default:
		out.buf = append(out.buf, "null}\n"...) // upstream's empty list of metadata has null
	}
	out.close()
	return nil
}

// listHead returns the text with which a list of a kind begins, up to the value of its
// metadata.
func (e *encoded) listHead(gv schema.GroupVersion, kind string) string {
	return `{"kind":"` + kind + `","apiVersion":"` + gv.String() + `","metadata":`
}

// appendHead appends the text of the list up to its first item. Encoding the list's
// metadata can't fail.
func (f *jsonFormat) appendHead(dst []byte, list *storage.EncodedList) []byte {
	head := listMeta(list)
	meta, _ := json.Marshal(head)
	if f.e.unstructured && !f.partial {
		meta, _ = json.Marshal(unstructuredListMeta{head, list.Continue})
	}
	dst = append(dst, f.head...)
	dst = append(dst, meta...)
	dst = append(dst, `,"items":`...)
	if !f.partial {
		dst = append(dst, '[')
	}
	return dst
}

func listMeta(list *storage.EncodedList) metav1.ListMeta {
	return metav1.ListMeta{
		ResourceVersion:    list.ResourceVersion,
		Continue:           list.Continue,
		RemainingItemCount: list.RemainingItemCount,
	}
}

// unstructuredListMeta is the metadata of a list of objects without a Go type. It has
// the member continue even if that is empty.
type unstructuredListMeta struct {
	metav1.ListMeta `json:",inline"`
	Continue        string `json:"continue"`
}

// marshalJSON encodes as upstream's serializer does, but without the newline at the
// end.
func marshalJSON(object any) ([]byte, error) {
	var buf bytes.Buffer
	err := json.NewEncoder(&buf).Encode(object)
	return bytes.TrimRight(buf.Bytes(), "\n"), err
}

// indented is a format of JSON for people: curl and browsers get it. It answers gets and lists as the format in it,
// indented. Events of watches are not indented, as upstream's are not.
type indented struct{ format }

func (f indented) appendObject(dst []byte, o encoding.Encoded) []byte {
	compact := f.format.appendObject(getBuffer(), o)
	dst = new(indenter).append(dst, compact)
	putBuffer(compact)
	return dst
}

func (f indented) writeList(ctx context.Context, out *answerWriter, list *storage.EncodedList) error {
	out.indent()
	return f.format.writeList(ctx, out, list)
}

// indenter indents JSON that it gets piece by piece. The result is that of upstream's serializer for indented JSON
// (json.MarshalIndent with two spaces), which has no newline at the end. The text must be valid JSON. The zero value
// expects the beginning of a text.
type indenter struct {
	depth int
	// isEmpty is true after a bracket that opens an object or an array.
	isEmpty bool
	// inString is true inside a string, and isEscaped after a backslash there.
	inString, isEscaped bool
}

func (i *indenter) append(dst, text []byte) []byte {
	for len(text) > 0 {
		if i.inString {
			n := i.restOfString(text)
			dst, text = append(dst, text[:n]...), text[n:]
			continue
		}
		c := text[0]
		text = text[1:]
		switch c {
		case ' ', '\t', '\r', '\n':
			continue
		case '}', ']':
			i.depth--
		}
		isEnd := c == '}' || c == ']'
		if i.isEmpty != isEnd { // before the first member or element, and after the last one
			dst = i.appendNewline(dst)
		}
		i.isEmpty = false
		dst = append(dst, c)
		switch c {
		case '"':
			i.inString = true
		case ':':
			dst = append(dst, ' ')
		case ',':
			dst = i.appendNewline(dst)
		case '{', '[':
			i.isEmpty = true
			i.depth++
		}
	}
	return dst
}

// restOfString returns the length of what text has of a string that has begun, with its quotation mark.
func (i *indenter) restOfString(text []byte) int {
	for n, c := range text {
		switch {
		case i.isEscaped:
			i.isEscaped = false
		case c == '\\':
			i.isEscaped = true
		case c == '"':
			i.inString = false
			return n + 1
		}
	}
	return len(text)
}

func (i *indenter) appendNewline(dst []byte) []byte {
	dst = append(dst, '\n')
	for range i.depth {
		dst = append(dst, "  "...)
	}
	return dst
}

// protobufFormat is Kubernetes' protobuf: four magic bytes, followed by a
// runtime.Unknown that contains the object's message
// (k8s.io/apimachinery/pkg/runtime/serializer/protobuf).
type protobufFormat struct {
	stored       *encoding.Format
	object, list envelope
	// swapped is true for a list whose items have the field number 1, and its metadata
	// 2.
	swapped bool
}

func newProtobufFormat(stored *encoding.Format, gv schema.GroupVersion, kind, listKind string) *protobufFormat {
	return &protobufFormat{
		stored:  stored,
		object:  newEnvelope(gv, kind),
		list:    newEnvelope(gv, listKind),
		swapped: gv.Version == "v1beta1" && kind == partialObjectMetadata,
	}
}

const (
	protobufMagic = "k8s\x00"
	// The tags of the fields with the numbers 1 and 2 that have a length.
	tagFirst, tagSecond = 1<<3 | 2, 2<<3 | 2
	streamSuffix        = ";stream=watch"
)

// envelope is the constant part of a runtime.Unknown. head comes before the length of
// the message in it, tail after the message.
type envelope struct{ head, tail string }

func newEnvelope(gv schema.GroupVersion, kind string) envelope {
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: gv.String(), Kind: kind}, Raw: []byte{}}
	text, err := unknown.Marshal()
	if err != nil {
		panic(err) // a message of two strings can always be encoded
	}
	typeMeta := unknown.TypeMeta.Size()
	at := 1 + protowire.SizeBytes(typeMeta) + 1 // after the tag of Raw
	return envelope{protobufMagic + string(text[:at]), string(text[at+1:])}
}

// size is the size of an envelope with a message of n bytes, in bytes.
func (v envelope) size(n int) int { return len(v.head) + protowire.SizeBytes(n) + len(v.tail) }

func (v envelope) append(dst, message []byte) []byte {
	dst = append(dst, v.head...)
	dst = protowire.AppendBytes(dst, message)
	return append(dst, v.tail...)
}

var errNotProtobuf = errors.New("the encoder of protobuf has given something else")

// messageIn returns the message inside an encoded object.
func messageIn(text []byte) ([]byte, error) {
	rest, ok := bytes.CutPrefix(text, []byte(protobufMagic))
	if !ok {
		return nil, errNotProtobuf
	}
	var unknown runtime.Unknown
	if err := unknown.Unmarshal(rest); err != nil {
		return nil, err
	}
	return unknown.Raw, nil
}

func (f *protobufFormat) objects() *encoding.Format { return f.stored }

func (f *protobufFormat) mediaType() string { return runtime.ContentTypeProtobuf }

func (f *protobufFormat) streamType() string { return runtime.ContentTypeProtobuf + streamSuffix }

func (f *protobufFormat) appendObject(dst []byte, o encoding.Encoded) []byte {
	return f.object.append(dst, o.Body())
}

// appendEvent appends the length of a metav1.WatchEvent and the event: its type, and the
// object in a runtime.RawExtension.
func (f *protobufFormat) appendEvent(dst []byte, event string, o encoding.Encoded) ([]byte, int) {
	message := o.Body()
	dst, size := appendEventHead(dst, event, f.object.size(len(message)))
	return f.object.append(dst, message), size
}

// appendEventHead appends a WatchEvent up to its object, which has object bytes. It
// returns the size of the whole event in bytes.
func appendEventHead(dst []byte, event string, object int) ([]byte, int) {
	raw := 1 + protowire.SizeBytes(object)
	size := 1 + protowire.SizeBytes(len(event)) + 1 + protowire.SizeBytes(raw)
	dst = binary.BigEndian.AppendUint32(dst, uint32(size))
	dst = append(dst, tagFirst)
	dst = protowire.AppendString(dst, event)
	dst = append(dst, tagSecond)
	dst = protowire.AppendVarint(dst, uint64(raw))
	dst = append(dst, tagFirst)
	return protowire.AppendVarint(dst, uint64(object)), size
}

// appendError appends a Status, which can always be encoded.
func (f *protobufFormat) appendError(dst []byte, status *metav1.Status) []byte {
	text, _ := status.Marshal()
	object := statusEnvelope.append(nil, text)
	dst, _ = appendEventHead(dst, string(apiwatch.Error), len(object))
	return append(dst, object...)
}

var statusEnvelope = newEnvelope(schema.GroupVersion{Version: "v1"}, "Status")

// writeList writes the items while they are read. Before the items it writes the length
// of the whole list, for which it reads the lengths of all items.
func (f *protobufFormat) writeList(ctx context.Context, out *answerWriter, list *storage.EncodedList) error {
	total, err := list.MessagesBytes(ctx)
	if err != nil {
		return err
	}
	head := listMeta(list)
	meta, err := head.Marshal()
	if err != nil {
		return err
	}
	tagMeta, tagItem := byte(tagFirst), byte(tagSecond)
	if f.swapped {
		tagMeta, tagItem = tagItem, tagMeta
	}
	out.buf = append(out.buf, f.list.head...)
	out.buf = protowire.AppendVarint(out.buf, uint64(1+protowire.SizeBytes(len(meta))+total))
	appendMeta := func() {
		out.buf = append(out.buf, tagMeta)
		out.buf = protowire.AppendBytes(out.buf, meta)
	}
	if !f.swapped {
		appendMeta()
	}
	for object, err := range list.Items {
		if err != nil {
			return err
		}
		out.buf = append(out.buf, tagItem)
		out.buf = protowire.AppendBytes(out.buf, object.Body())
		if out.flush(); out.err != nil {
			return nil // the client is gone
		}
	}
	if f.swapped {
		appendMeta()
	}
	out.buf = append(out.buf, f.list.tail...)
	out.close()
	return nil
}
