package storage

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"

	"byre/apiserver/storage/transcode"
	"byre/watch"
	"byre/watch/representation"
)

// Format is one way to present the objects of a Store: a version, an encoding, and
// which part of the object. A Format belongs to one Store. It is safe for concurrent
// use.
type Format struct {
	form     representation.Form
	protobuf bool
	// message returns what transcodes the stored JSON, or its metadata; nil, or a nil
	// result, means that the objects are decoded and encoded.
	message func() *transcode.Message
	// metadata is true if message transcodes only the metadata. whole is then the
	// Format of the whole object in the storage version in protobuf, or nil.
	metadata bool
	whole    *Format
	// encode encodes an object without a resourceVersion. It may change the object. In
	// protobuf it returns the message without the envelope of runtime.Unknown.
	encode func(context.Context, runtime.Object) ([]byte, error)
	// opaque is true for bodies into which no resourceVersion is inserted.
	opaque bool
	// from is the Format of protobuf that objects are decoded from, after wrap has put
	// the message into an envelope. Where from is nil, objects are decoded from the
	// stored JSON.
	from *Format
	wrap func(message []byte) []byte
	// companion is the Format in which readers also ask for each object, or nil.
	companion *Format
}

// Opaque returns a Format whose bytes are what encode returns, without an inserted
// resourceVersion. encode gets objects in the version in memory, and may change them.
//
// Where from is not nil, it is a Format of protobuf in the storage version. Objects are
// then decoded from its message, after wrap has put the message into an envelope; this
// takes a fraction of the time of decoding JSON. Such objects may have nil where the
// stored JSON has empty lists and maps.
//
// Where companion is not nil, readers also ask for each object in this Format
// (Encoded.In), so a list makes both representations of an object together.
func Opaque(name string, from, companion *Format, wrap func([]byte) []byte, encode func(context.Context, runtime.Object) ([]byte, error)) *Format {
	return &Format{form: representation.Form{Name: name}, encode: encode, opaque: true, from: from, wrap: wrap, companion: companion}
}

// JSON returns a Format of JSON. encode gets objects in the version in memory, without
// a resourceVersion, and may change them.
func JSON(name string, encode func(context.Context, runtime.Object) ([]byte, error)) *Format {
	return &Format{form: representation.Form{Name: name}, encode: encode}
}

// Protobuf returns a Format of protobuf. encode gets objects as with JSON and returns
// messages without the envelope of runtime.Unknown.
func Protobuf(name string, encode func(context.Context, runtime.Object) ([]byte, error)) *Format {
	return &Format{form: representation.Form{Name: name}, protobuf: true, encode: encode}
}

// Transcoded returns a Format of the storage version in protobuf. It transcodes the
// stored JSON; objects that can't be transcoded are decoded and encoded, as with
// Protobuf. message returns what transcodes, or nil; it is called for each object that
// is made.
func Transcoded(name string, message func() *transcode.Message, encode func(context.Context, runtime.Object) ([]byte, error)) *Format {
	f := Protobuf(name, encode)
	f.message = message
	return f
}

// MetadataProtobuf returns a Format of only the metadata in protobuf. Objects that
// can't be transcoded are decoded and encoded, as with Protobuf. Where whole is not
// nil, it is the Format of the whole object in the storage version in protobuf. If an
// object is in memory in that Format, its metadata is cut out of the message: both
// messages begin with the metadata.
func MetadataProtobuf(name string, whole *Format, message func() *transcode.Message, encode func(context.Context, runtime.Object) ([]byte, error)) *Format {
	f := Transcoded(name, message, encode)
	f.metadata, f.whole = true, whole
	return f
}

// Stored is the Format of the stored objects: JSON in the storage version.
func (s *Store) Stored() *Format { return &s.stored }

// inMemory returns the representation of an entry in a Format if it is in memory, and
// otherwise nil.
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

// represent returns the representation of an entry in a Format, and makes it if
// necessary.
func (s *Store) represent(ctx context.Context, e *watch.Entry, f *Format) (*representation.Representation, error) {
	if r := s.inMemory(e, f); r != nil {
		return r, nil
	}
	return s.cfg.Feed.Representations().GetOrMake(ctx, &e.Representations, &f.form, s.maker(e, f))
}

// representItem is represent for an item of a list. It uses Representations.Scan, so
// that a large list does not evict what other readers use.
func (s *Store) representItem(ctx context.Context, e *watch.Entry, f *Format) (*representation.Representation, error) {
	if r := s.inMemory(e, f); r != nil {
		return r, nil
	}
	return s.cfg.Feed.Representations().Scan(ctx, &e.Representations, &f.form, s.maker(e, f))
}

func (s *Store) maker(e *watch.Entry, f *Format) representation.Make {
	return func(ctx context.Context) (made representation.Representation, err error) {
		if f == &s.stored {
			made, err = s.makeStored(ctx, e)
		} else {
			made, err = s.makeFormat(ctx, e, f)
		}
		if s.mayChange(e) {
			made.Expires = s.cfg.Feed.Representations().After(s.cfg.DecodedAge)
		}
		return made, err
	}
}

// mayChange reports whether decoding an entry again may give another object; see
// Config.DecodedAge.
func (s *Store) mayChange(e *watch.Entry) bool {
	return s.cfg.DecodedAge > 0 && (s.cfg.Lossy || e.Form != s.cfg.Form)
}

// makeStored makes the JSON in the storage version that a decode and an encode would
// give.
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

// decodeFor decodes an entry that is to be encoded in a Format. It decodes the
// representation that takes the least time.
func (s *Store) decodeFor(ctx context.Context, e *watch.Entry, f *Format) (runtime.Object, error) {
	if f.from == nil || f.from.message == nil || f.from.message() == nil {
		return s.object(ctx, e)
	}
	// The message is not kept in the cache, because the readers of this Format may
	// never ask for it.
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

// storedJSON returns the JSON that makeStored makes of an entry. Where the value
// already has that form, storedJSON makes no representation, which would take a quarter
// of the time of a transcode.
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

// transcode transcodes the stored JSON, or its metadata, to a message and calls use
// with it. use must not keep the message.
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

// bookmark returns the object of a bookmark in a Format.
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
