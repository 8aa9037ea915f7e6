package encoding

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"

	"byre/apiserver/storage/transcode"
	"byre/watch"
)

// Format is one way to present the objects of a resource: a version, an encoding, and
// which part of the object. A Format belongs to one Serializer. It is safe for concurrent
// use. The zero value is JSON in the storage version.
type Format struct {
	// key identifies the Format in the cache of representations.
	key watch.Format
	// encoder encodes an object; nil for the zero value. represent makes a representation of the result.
	encoder   Encode
	represent func(body []byte, revision int64) (watch.Representation, error)

	// message returns what transcodes the stored JSON to protobuf; nil, or a nil result, means that the objects
	// are decoded and encoded. transcode transcodes the object, or its metadata; nil for all but protobuf.
	message   func() *transcode.Message
	transcode func(m *transcode.Message, stored []byte, use func([]byte) error) error
	// whole is the Format of the object of which this one has the metadata; nil: none.
	whole *Format

	// from is the Format that rows of tables are decoded from; nil: objects are decoded from the stored JSON.
	// wrap and companion are those of Row.
	from, companion *Format
	wrap            func(message []byte) []byte
}

// Encode encodes an object in the version in memory, without a resourceVersion, and may change it.
type Encode func(context.Context, runtime.Object) ([]byte, error)

// Stored is the Format of the stored objects: JSON in the storage version.
func (s *Serializer) Stored() *Format { return &s.stored }

// JSON returns a Format of JSON, of a version that is not stored or of a part of the object.
func JSON(name string, encode Encode) *Format {
	return &Format{key: watch.Format{Name: name}, encoder: encode, represent: func(body []byte, _ int64) (watch.Representation, error) {
		return newJSON(body), nil
	}}
}

// Protobuf returns a Format of protobuf. encode returns messages without the envelope of
// runtime.Unknown.
func Protobuf(name string, encode Encode) *Format { return Transcoded(name, nil, encode) }

// Transcoded returns a Format of the storage version in protobuf. It transcodes the
// stored JSON; objects that can't be transcoded are decoded and encoded, as with
// Protobuf. message returns what transcodes, or nil; it is called for each object that
// is made.
func Transcoded(name string, message func() *transcode.Message, encode Encode) *Format {
	return &Format{
		key: watch.Format{Name: name}, encoder: encode, represent: newProtobuf,
		message: message, transcode: (*transcode.Message).Transcode,
	}
}

// MetadataProtobuf returns a Format of only the metadata in protobuf. Objects that
// can't be transcoded are decoded and encoded, as with Protobuf. Where whole is not
// nil, it is the Format of the whole object in the storage version in protobuf. If an
// object is in memory in that Format, its metadata is cut out of the message: both
// messages begin with the metadata.
func MetadataProtobuf(name string, whole *Format, message func() *transcode.Message, encode Encode) *Format {
	f := Transcoded(name, message, encode)
	f.transcode, f.whole = (*transcode.Message).TranscodeHead, whole
	return f
}

// Row returns a Format whose bytes are what encode returns, without an inserted
// resourceVersion.
//
// from is a Format that Transcoded or Protobuf returned. Where it transcodes, objects are decoded
// from its message, after wrap has put the message into an envelope; this takes a fraction of the
// time of decoding JSON. Such objects may have nil where the stored JSON has empty lists and maps.
//
// Readers also ask for each object in the Format companion (Encoded.In), so a list makes both
// representations of an object together.
func Row(name string, from, companion *Format, wrap func([]byte) []byte, encode Encode) *Format {
	return &Format{
		key: watch.Format{Name: name}, encoder: encode, from: from, companion: companion, wrap: wrap,
		represent: func(body []byte, _ int64) (watch.Representation, error) {
			return watch.Representation{Body: body}, nil
		},
	}
}

// find returns the representation of an entry if it is in memory, and otherwise nil.
func (f *Format) find(s *Serializer, e *watch.Entry) *watch.Representation {
	r := s.Cache.Get(&e.Representations, &f.key)
	if r == nil && f.whole != nil {
		if whole := f.whole.find(s, e); whole != nil {
			return cutMetadata(whole)
		}
	}
	return r
}

// make makes the representation of an entry.
func (f *Format) make(ctx context.Context, s *Serializer, e *watch.Entry) (made watch.Representation, err error) {
	if f.encoder == nil {
		return s.makeStored(ctx, e)
	}
	err = f.transcodeStored(ctx, s, e, func(body []byte) (err error) {
		made, err = newProtobuf(body, e.Revision)
		return err
	})
	if !errors.Is(err, transcode.ErrUnexpected) {
		return made, err
	}
	obj, err := f.decode(ctx, s, e)
	if err != nil {
		return watch.Representation{}, err
	}
	return f.encode(ctx, s, obj, e.Revision)
}

func (s *Serializer) makeStored(ctx context.Context, e *watch.Entry) (watch.Representation, error) {
	data, _, err := s.Open(ctx, e)
	if err == nil && e.Encoding != s.Encoding {
		data, err = s.reencode(data, e.Revision)
	}
	if err != nil {
		return watch.Representation{}, err
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

func (f *Format) transcodes() bool { return f.message != nil && f.message() != nil }

// transcodeStored transcodes the stored JSON to a message and calls use with it. use must not keep
// the message. It returns transcode.ErrUnexpected for an object that has to be decoded.
func (f *Format) transcodeStored(ctx context.Context, s *Serializer, e *watch.Entry, use func([]byte) error) error {
	if !f.transcodes() {
		return transcode.ErrUnexpected
	}
	stored, err := s.storedJSON(ctx, e)
	if err != nil {
		return err
	}
	return f.transcode(f.message(), stored, use)
}

// decode decodes an entry that is to be encoded, from the representation that takes the least time.
func (f *Format) decode(ctx context.Context, s *Serializer, e *watch.Entry) (runtime.Object, error) {
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

// encode encodes an object, which it may change.
func (f *Format) encode(ctx context.Context, s *Serializer, obj runtime.Object, revision int64) (watch.Representation, error) {
	if err := versioner.PrepareObjectForStorage(obj); err != nil {
		return watch.Representation{}, fmt.Errorf("PrepareObjectForStorage failed: %w", err)
	}
	if f.encoder == nil { // a bookmark, which has no defaults
		body, err := s.encodeBy(s.Plain, obj)
		return newJSON(body), err
	}
	body, err := f.encoder(ctx, obj)
	if err != nil {
		return watch.Representation{}, err
	}
	return f.represent(body, revision)
}

// atRevision returns the representation of an entry at a revision, which is not the entry's
// own in a DELETED event.
func (f *Format) atRevision(r *watch.Representation, e *watch.Entry, revision int64) *watch.Representation {
	if f.transcode == nil || revision == e.Revision {
		return r
	}
	other := withRevision(r, revision)
	return &other
}
