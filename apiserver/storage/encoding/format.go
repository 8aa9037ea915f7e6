package encoding

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"

	"byre/apiserver/storage/transcode"
	"byre/watch"
	"byre/watch/representation"
)

// Format is one way to present the objects of a resource: a version, an encoding, and
// which part of the object. A Format belongs to one Serializer. It is safe for concurrent
// use.
type Format interface {
	// key identifies the Format in the cache of representations.
	key() *representation.Format
	// find returns the representation of an entry if it is in memory, and otherwise nil.
	find(s *Serializer, e *watch.Entry) *representation.Representation
	// make makes the representation of an entry.
	make(ctx context.Context, s *Serializer, e *watch.Entry) (representation.Representation, error)
	// decode decodes an entry that is to be encoded.
	decode(ctx context.Context, s *Serializer, e *watch.Entry) (runtime.Object, error)
	// encode encodes an object, which it may change.
	encode(ctx context.Context, s *Serializer, obj runtime.Object, revision int64) (representation.Representation, error)
	// atRevision returns the representation of an entry at a revision, which is not the entry's
	// own in a DELETED event.
	atRevision(r *representation.Representation, e *watch.Entry, revision int64) *representation.Representation
}

// Encode encodes an object in the version in memory, without a resourceVersion, and may change it.
type Encode func(context.Context, runtime.Object) ([]byte, error)

// cached is what the Formats have in common.
type cached struct{ format representation.Format }

func (f *cached) key() *representation.Format { return &f.format }

func (f *cached) find(s *Serializer, e *watch.Entry) *representation.Representation {
	return s.Cache.Get(&e.Representations, &f.format)
}

func (f *cached) decode(ctx context.Context, s *Serializer, e *watch.Entry) (runtime.Object, error) {
	return s.Object(ctx, e)
}

func (f *cached) atRevision(r *representation.Representation, _ *watch.Entry, _ int64) *representation.Representation {
	return r
}

// makeDecoded makes a representation of an entry by decoding and encoding it.
func makeDecoded(ctx context.Context, s *Serializer, e *watch.Entry, f Format) (representation.Representation, error) {
	obj, err := f.decode(ctx, s, e)
	if err != nil {
		return representation.Representation{}, err
	}
	return f.encode(ctx, s, obj, e.Revision)
}

// encodeUnversioned encodes an object without its resourceVersion.
func encodeUnversioned(ctx context.Context, obj runtime.Object, encode Encode) ([]byte, error) {
	if err := versioner.PrepareObjectForStorage(obj); err != nil {
		return nil, fmt.Errorf("PrepareObjectForStorage failed: %w", err)
	}
	return encode(ctx, obj)
}

// storedFormat is JSON in the storage version.
type storedFormat struct{ cached }

// Stored is the Format of the stored objects: JSON in the storage version.
func (s *Serializer) Stored() Format { return &s.stored }

func (*storedFormat) make(ctx context.Context, s *Serializer, e *watch.Entry) (representation.Representation, error) {
	data, _, err := s.Open(ctx, e)
	if err == nil && e.Encoding != s.Encoding {
		data, err = s.reencode(data, e.Revision)
	}
	if err != nil {
		return representation.Representation{}, err
	}
	r := newJSON(data)
	r.Shared = e.Holds(data)
	return r, nil
}

// reencode decodes data and encodes it in the current encoding.
func (s *Serializer) reencode(data []byte, revision int64) ([]byte, error) {
	obj := s.NewFunc()
	if err := s.DecodeInto(data, obj, revision); err != nil {
		return nil, err
	}
	if err := versioner.PrepareObjectForStorage(obj); err != nil {
		return nil, err
	}
	return s.encodeBy(s.Plain, obj)
}

func (*storedFormat) encode(_ context.Context, s *Serializer, obj runtime.Object, _ int64) (representation.Representation, error) {
	if err := versioner.PrepareObjectForStorage(obj); err != nil {
		return representation.Representation{}, err
	}
	body, err := s.Encode(obj)
	return newJSON(body), err
}

// jsonFormat is JSON of a version that is not stored, or of a part of the object.
type jsonFormat struct {
	cached
	encoder Encode
}

// JSON returns a Format of JSON.
func JSON(name string, encode Encode) Format {
	return &jsonFormat{cached{representation.Format{Name: name}}, encode}
}

func (f *jsonFormat) make(ctx context.Context, s *Serializer, e *watch.Entry) (representation.Representation, error) {
	return makeDecoded(ctx, s, e, f)
}

func (f *jsonFormat) encode(ctx context.Context, _ *Serializer, obj runtime.Object, _ int64) (representation.Representation, error) {
	body, err := encodeUnversioned(ctx, obj, f.encoder)
	return newJSON(body), err
}

// protobufFormat is protobuf, without the envelope of runtime.Unknown.
type protobufFormat struct {
	cached
	encoder Encode
	// message returns what transcodes the stored JSON; nil, or a nil result, means that the objects
	// are decoded and encoded.
	message func() *transcode.Message
	// transcode transcodes the object, or its metadata.
	transcode func(m *transcode.Message, stored []byte, use func([]byte) error) error
}

// Protobuf returns a Format of protobuf. encode returns messages without the envelope of
// runtime.Unknown.
func Protobuf(name string, encode Encode) Format { return Transcoded(name, nil, encode) }

// Transcoded returns a Format of the storage version in protobuf. It transcodes the
// stored JSON; objects that can't be transcoded are decoded and encoded, as with
// Protobuf. message returns what transcodes, or nil; it is called for each object that
// is made.
func Transcoded(name string, message func() *transcode.Message, encode Encode) Format {
	f := newProtobufFormat(name, message, encode)
	return &f
}

func newProtobufFormat(name string, message func() *transcode.Message, encode Encode) protobufFormat {
	return protobufFormat{cached{representation.Format{Name: name}}, encode, message, (*transcode.Message).Transcode}
}

func (f *protobufFormat) make(ctx context.Context, s *Serializer, e *watch.Entry) (made representation.Representation, err error) {
	err = f.transcodeStored(ctx, s, e, func(body []byte) (err error) {
		made, err = newProtobuf(body, e.Revision)
		return err
	})
	if errors.Is(err, transcode.ErrUnexpected) {
		return makeDecoded(ctx, s, e, f)
	}
	return made, err
}

func (f *protobufFormat) transcodes() bool { return f.message != nil && f.message() != nil }

// transcodeStored transcodes the stored JSON to a message and calls use with it. use must not keep
// the message. It returns transcode.ErrUnexpected for an object that has to be decoded.
func (f *protobufFormat) transcodeStored(ctx context.Context, s *Serializer, e *watch.Entry, use func([]byte) error) error {
	if !f.transcodes() {
		return transcode.ErrUnexpected
	}
	stored, err := s.storedJSON(ctx, e)
	if err != nil {
		return err
	}
	return f.transcode(f.message(), stored, use)
}

func (f *protobufFormat) encode(ctx context.Context, _ *Serializer, obj runtime.Object, revision int64) (representation.Representation, error) {
	message, err := encodeUnversioned(ctx, obj, f.encoder)
	if err != nil {
		return representation.Representation{}, err
	}
	return newProtobuf(message, revision)
}

func (f *protobufFormat) atRevision(r *representation.Representation, e *watch.Entry, revision int64) *representation.Representation {
	if revision == e.Revision {
		return r
	}
	other := withRevision(r, revision)
	return &other
}

// metadataFormat is only the metadata in protobuf.
type metadataFormat struct {
	protobufFormat
	whole Format // nil: none
}

// MetadataProtobuf returns a Format of only the metadata in protobuf. Objects that
// can't be transcoded are decoded and encoded, as with Protobuf. Where whole is not
// nil, it is the Format of the whole object in the storage version in protobuf. If an
// object is in memory in that Format, its metadata is cut out of the message: both
// messages begin with the metadata.
func MetadataProtobuf(name string, whole Format, message func() *transcode.Message, encode Encode) Format {
	f := &metadataFormat{newProtobufFormat(name, message, encode), whole}
	f.transcode = (*transcode.Message).TranscodeHead
	return f
}

func (f *metadataFormat) find(s *Serializer, e *watch.Entry) *representation.Representation {
	r := f.protobufFormat.find(s, e)
	if r == nil && f.whole != nil {
		if whole := f.whole.find(s, e); whole != nil {
			return cutMetadata(whole)
		}
	}
	return r
}

// rowFormat is a row of a table.
type rowFormat struct {
	cached
	encoder   Encode
	from      *protobufFormat // nil: objects are decoded from the stored JSON
	wrap      func(message []byte) []byte
	companion Format // nil: none
}

// Row returns a Format whose bytes are what encode returns, without an inserted
// resourceVersion.
//
// Where from is not nil, it is a Format that Transcoded or Protobuf returned, in the storage
// version. Objects are then decoded from its message, after wrap has put the message into an
// envelope; this takes a fraction of the time of decoding JSON. Such objects may have nil where the
// stored JSON has empty lists and maps.
//
// Where companion is not nil, readers also ask for each object in this Format
// (Encoded.In), so a list makes both representations of an object together.
func Row(name string, from, companion Format, wrap func([]byte) []byte, encode Encode) Format {
	message, _ := from.(*protobufFormat)
	return &rowFormat{cached{representation.Format{Name: name}}, encode, message, wrap, companion}
}

func (f *rowFormat) make(ctx context.Context, s *Serializer, e *watch.Entry) (representation.Representation, error) {
	return makeDecoded(ctx, s, e, f)
}

// decode decodes the representation that takes the least time.
func (f *rowFormat) decode(ctx context.Context, s *Serializer, e *watch.Entry) (runtime.Object, error) {
	if f.from == nil || !f.from.transcodes() {
		return s.Object(ctx, e)
	}
	// The message is not kept in the cache, because the readers of this Format may
	// never ask for it.
	obj := s.NewFunc()
	decode := func(message []byte) error { return s.DecodeInto(f.wrap(message), obj, e.Revision) }
	if r := f.from.find(s, e); r != nil {
		return obj, decode(r.Body)
	}
	err := f.from.transcodeStored(ctx, s, e, decode)
	if errors.Is(err, transcode.ErrUnexpected) {
		return s.Object(ctx, e)
	}
	return obj, err
}

func (f *rowFormat) encode(ctx context.Context, _ *Serializer, obj runtime.Object, _ int64) (representation.Representation, error) {
	body, err := encodeUnversioned(ctx, obj, f.encoder)
	return representation.Representation{Body: body}, err
}
