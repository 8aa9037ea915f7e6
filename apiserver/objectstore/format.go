package objectstore

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"

	"byre/apiserver/transcode"
	"byre/watch"
	"byre/watch/representation"
)

// Format is one way to show the objects of a Store: in a version, an encoding, whole or
// in part. A Format belongs to one Store. It is safe for concurrent use.
type Format struct {
	form     representation.Form
	protobuf bool
	// message returns what transcodes the stored JSON, or its metadata; nil if nothing
	// can.
	message func() *transcode.Message
	// metadata marks that message is of what surrounds the metadata alone. whole is the
	// Format of the whole object in the storage version in protobuf, or nil.
	metadata bool
	whole    *Format
	// encode encodes an object without a resourceVersion. It may change the object. In
	// protobuf it gives the message alone.
	encode func(context.Context, runtime.Object) ([]byte, error)
	// opaque is true for bodies into which no resourceVersion is inserted.
	opaque bool
	// from is a Format of protobuf that objects are decoded from, in the envelope that
	// wrap puts a message into; nil is for the stored JSON.
	from *Format
	wrap func(message []byte) []byte
	// beside is the Format in which readers ask for each object too, or nil.
	beside *Format
}

// Opaque returns a Format for what encode makes of objects, as it is. encode gets objects
// in the version in memory, and may change them. Where from is not nil, it is a Format of
// protobuf in the storage version, and wrap makes a message of it decodable: objects are
// then decoded from that, which takes a fraction of the time. Such objects may have nil
// where the stored JSON has empty lists and maps. Readers ask for each object in the
// Format beside too (Encoded.In), unless that is nil: a list then makes both together.
func Opaque(name string, from, beside *Format, wrap func([]byte) []byte, encode func(context.Context, runtime.Object) ([]byte, error)) *Format {
	return &Format{form: representation.Form{Name: name}, encode: encode, opaque: true, from: from, wrap: wrap, beside: beside}
}

// JSON returns a Format that encode makes JSON for, and Protobuf one that it makes
// messages for. encode gets objects in the version in memory, without a resourceVersion,
// and may change them.
func JSON(name string, encode func(context.Context, runtime.Object) ([]byte, error)) *Format {
	return &Format{form: representation.Form{Name: name}, encode: encode}
}

// Protobuf is like JSON.
func Protobuf(name string, encode func(context.Context, runtime.Object) ([]byte, error)) *Format {
	return &Format{form: representation.Form{Name: name}, protobuf: true, encode: encode}
}

// Transcoded is a Format of the storage version in protobuf. Objects that can't be
// transcoded are encoded as with Protobuf. message makes what transcodes, or returns
// nil, when it is first needed.
func Transcoded(name string, message func() *transcode.Message, encode func(context.Context, runtime.Object) ([]byte, error)) *Format {
	f := Protobuf(name, encode)
	f.message = message
	return f
}

// MetadataProtobuf is a Format of the metadata in protobuf, without the rest of the
// object. Objects that can't be transcoded are encoded as with Protobuf. Where whole is
// not nil, it is the Format of the whole object in the storage version in protobuf: an
// object that is in memory in that Format is cut out of it, because both messages begin
// with the metadata.
func MetadataProtobuf(name string, whole *Format, message func() *transcode.Message, encode func(context.Context, runtime.Object) ([]byte, error)) *Format {
	f := Transcoded(name, message, encode)
	f.metadata, f.whole = true, whole
	return f
}

// Stored is the Format of the stored objects: JSON in the storage version.
func (s *Store) Stored() *Format { return &s.stored }

// inMemory returns an entry in a Format where that need not be made, or nil.
func (s *Store) inMemory(e *watch.Entry, f *Format) *representation.Representation {
	cache := s.cfg.Feed.Representations()
	r := cache.Get(&e.Representations, &f.form)
	if r == nil && f.whole != nil {
		if whole := cache.Get(&e.Representations, &f.whole.form); whole != nil {
			return cutMetadata(whole)
		}
	}
	return r
}

// represent returns an entry in a Format.
func (s *Store) represent(ctx context.Context, e *watch.Entry, f *Format) (*representation.Representation, error) {
	if r := s.inMemory(e, f); r != nil {
		return r, nil
	}
	return s.cfg.Feed.Representations().GetOrMake(ctx, &e.Representations, &f.form, s.maker(e, f))
}

// representItem is represent for an item of a list.
func (s *Store) representItem(ctx context.Context, e *watch.Entry, f *Format) (*representation.Representation, error) {
	if r := s.inMemory(e, f); r != nil {
		return r, nil
	}
	return s.cfg.Feed.Representations().Scan(ctx, &e.Representations, &f.form, s.maker(e, f))
}

func (s *Store) maker(e *watch.Entry, f *Format) representation.Make {
	return func(ctx context.Context) (representation.Representation, error) {
		if f == &s.stored {
			return s.makeStored(ctx, e)
		}
		return s.makeFormat(ctx, e, f)
	}
}

// makeStored makes JSON in the storage version, as a decode and an encode would give it.
func (s *Store) makeStored(ctx context.Context, e *watch.Entry) (representation.Representation, error) {
	data, _, err := s.open(ctx, &e.Record)
	if err == nil && e.Form != s.cfg.Form {
		data, err = s.reencode(data, e.Revision)
	}
	if err != nil {
		return representation.Representation{}, err
	}
	r := newJSON(data)
	r.Shared = &data[0] == &e.Value[0]
	return r, nil
}

func (s *Store) makeFormat(ctx context.Context, e *watch.Entry, f *Format) (made representation.Representation, err error) {
	if f.message != nil {
		if message := f.message(); message != nil {
			err := s.transcode(ctx, e, f, message, func(body []byte) (err error) {
				made, err = newProtobuf(body, e.Revision)
				return err
			})
			if !errors.Is(err, transcode.ErrUnexpected) {
				return made, err
			}
		}
	}
	obj, err := s.decodeFor(ctx, e, f)
	if err != nil {
		return made, err
	}
	body, err := s.encodeUnversioned(ctx, obj, f)
	switch {
	case err != nil:
		return made, err
	case f.opaque:
		return representation.Representation{Body: body}, nil
	case f.protobuf:
		return newProtobuf(body, e.Revision)
	}
	return newJSON(body), nil
}

// decodeFor decodes an entry to be encoded in a Format, from the cheapest representation
// that will do.
func (s *Store) decodeFor(ctx context.Context, e *watch.Entry, f *Format) (runtime.Object, error) {
	if f.from == nil || f.from.message == nil || f.from.message() == nil {
		return s.object(ctx, e)
	}
	// The message is not kept, because the readers of this Format may never ask for the
	// other.
	obj := s.cfg.NewFunc()
	decode := func(message []byte) error { return s.decodeInto(f.wrap(message), obj, e.Revision) }
	if r := s.cfg.Feed.Representations().Get(&e.Representations, &f.from.form); r != nil {
		return obj, decode(r.Body)
	}
	err := s.transcode(ctx, e, f.from, f.from.message(), decode)
	if errors.Is(err, transcode.ErrUnexpected) {
		return s.object(ctx, e)
	}
	return obj, err
}

// encodeUnversioned encodes an object without its resourceVersion.
func (s *Store) encodeUnversioned(ctx context.Context, obj runtime.Object, f *Format) ([]byte, error) {
	if err := s.versioner.PrepareObjectForStorage(obj); err != nil {
		return nil, fmt.Errorf("PrepareObjectForStorage failed: %w", err)
	}
	return f.encode(ctx, obj)
}

// storedJSON returns what makeStored makes of an entry. It makes no representation of a
// value that is stored in this form: that takes a quarter of the time of a transcode.
func (s *Store) storedJSON(ctx context.Context, e *watch.Entry) ([]byte, error) {
	if s.sealer.plain && e.Form == s.cfg.Form && !IsWrapped(e.Value) {
		return e.Value, nil
	}
	stored, err := s.represent(ctx, e, &s.stored)
	if err != nil {
		return nil, err
	}
	return stored.Body, nil
}

// transcode makes a message of the stored JSON, or of its metadata, and calls use with it,
// which must not keep it.
func (s *Store) transcode(ctx context.Context, e *watch.Entry, f *Format, message *transcode.Message, use func([]byte) error) error {
	stored, err := s.storedJSON(ctx, e)
	switch {
	case err != nil:
		return err
	case f.metadata:
		return message.TranscodeHead(stored, use)
	}
	return message.Transcode(stored, use)
}

// bookmark returns an empty object in a Format.
func (s *Store) bookmark(ctx context.Context, f *Format, revision int64, initialEnd bool) (*representation.Representation, error) {
	obj, err := s.newBookmark(revision, initialEnd)
	if err != nil {
		return nil, err
	}
	var body []byte
	if f == &s.stored {
		if err = s.versioner.PrepareObjectForStorage(obj); err == nil {
			body, err = s.encode(obj)
		}
	} else {
		body, err = s.encodeUnversioned(ctx, obj, f)
	}
	if err != nil {
		return nil, err
	}
	r := newJSON(body)
	if f.protobuf {
		if r, err = newProtobuf(body, revision); err != nil {
			return nil, err
		}
	}
	return &r, nil
}
