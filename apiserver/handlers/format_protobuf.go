package handlers

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"byre/apiserver/storage"
	"byre/apiserver/storage/encoding"
)

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
