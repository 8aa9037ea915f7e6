package encoding

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"byre/apiserver/storage/transcode"
	"byre/sqlstore"
	"byre/watch"
)

// Serializer encodes and decodes the objects of one resource. All exported fields are set before
// its first use. It is safe for concurrent use.
type Serializer struct {
	// Codec, Plain, Encoding, Lossy, DecodedAge and NewFunc are those of storage.Config.
	Codec      runtime.Codec
	Plain      runtime.Encoder
	Encoding   string
	Lossy      bool
	DecodedAge time.Duration
	NewFunc    func() runtime.Object
	// Check is called with the revision of each entry that has another Encoding, before it is decoded. It fails if the
	// Serializer may not decode the entry.
	Check func(ctx context.Context, revision int64) error
	// Transformer encrypts values, with the path that Path returns.
	Transformer Transformer
	Path        func(sqlstore.Key) string
	Cache       *watch.Representations

	// stored is the Format of the stored JSON.
	stored Format
	// buffers has the buffers that objects are encoded into. An encoding is copied from its
	// buffer to memory of its exact size, because it stays in memory for as long as it is
	// current.
	buffers sync.Pool
}

var versioner storage.APIObjectVersioner

// maxPooledBuffer is the capacity, in bytes, of the largest buffer that is reused.
const maxPooledBuffer = 256 << 10

// Encode encodes an object in the storage version.
func (s *Serializer) Encode(obj runtime.Object) ([]byte, error) { return s.encodeBy(s.Codec, obj) }

func (s *Serializer) encodeBy(encoder runtime.Encoder, obj runtime.Object) ([]byte, error) {
	buf, ok := s.buffers.Get().(*bytes.Buffer)
	if !ok {
		buf = &bytes.Buffer{}
	}
	defer func() {
		if buf.Cap() <= maxPooledBuffer {
			buf.Reset()
			s.buffers.Put(buf)
		}
	}()
	if err := encoder.Encode(obj, buf); err != nil {
		return nil, err
	}
	return bytes.Clone(bytes.TrimRight(buf.Bytes(), "\n")), nil // encoders end an object with a newline
}

// Open decrypts an entry's value. stale reports whether the value should be written
// again, because it would now be encrypted otherwise.
func (s *Serializer) Open(ctx context.Context, e *watch.Entry) (data []byte, stale bool, err error) {
	if e.Encoding != s.Encoding {
		if err := s.Check(ctx, e.Revision); err != nil {
			return nil, false, err
		}
	}
	value := e.Value()
	if s.Transformer.isPlain && !IsWrapped(value) {
		return value, false, nil // without making the path
	}
	data, stale, err = s.Transformer.Decrypt(ctx, value, s.Path(e.Key))
	if err != nil {
		return nil, false, &CorruptError{IsEncrypted: true, Revision: e.Revision, Err: err}
	}
	return data, stale, nil
}

// DecodeInto decodes data into an empty object and sets the object's resourceVersion to
// revision.
func (s *Serializer) DecodeInto(data []byte, into runtime.Object, revision int64) error {
	if _, err := conversion.EnforcePtr(into); err != nil {
		return err
	}
	if _, _, err := s.Codec.Decode(data, nil, into); err != nil {
		if unconverted := (*ConversionError)(nil); errors.As(err, &unconverted) {
			return unconverted
		}
		return &CorruptError{Revision: revision, Err: err}
	}
	return versioner.UpdateObject(into, uint64(revision))
}

// Object decodes an entry. The caller owns the object.
func (s *Serializer) Object(ctx context.Context, e *watch.Entry) (runtime.Object, error) {
	obj := s.NewFunc()
	return obj, s.ReadInto(ctx, e, obj)
}

// ReadInto decodes an entry into an object that the caller owns.
func (s *Serializer) ReadInto(ctx context.Context, e *watch.Entry, into runtime.Object) error {
	if !s.mayChange(e) {
		if r := s.stored.find(s, e); r != nil {
			return s.DecodeInto(r.Body, into, e.Revision)
		}
	}
	data, _, err := s.Open(ctx, e)
	if err != nil {
		return err
	}
	return s.DecodeInto(data, into, e.Revision)
}

// SetOutput sets out to obj at a revision, where data is the encoding of obj. It neither decodes
// nor copies, because an object that was just written equals what a decode of its encoding would
// give. From then on out owns what obj refers to.
func (s *Serializer) SetOutput(out, obj runtime.Object, data []byte, revision int64) error {
	to, from := reflect.ValueOf(out), reflect.ValueOf(obj)
	if s.Lossy || to.Type() != from.Type() {
		return undecodableError(s.DecodeInto(data, out, revision))
	}
	to.Elem().Set(from.Elem())
	return versioner.UpdateObject(out, uint64(revision))
}

// storedJSON returns the JSON in the storage version that a decode and an encode of an entry would
// give. Where the value already is that, it is returned without a representation, whose making
// would take a quarter of the time of a transcode.
func (s *Serializer) storedJSON(ctx context.Context, e *watch.Entry) ([]byte, error) {
	if s.isStored(e) {
		if value := e.Value(); !IsWrapped(value) {
			return value, nil
		}
	}
	stored, err := s.RepresentItem(ctx, e, &s.stored)
	if err != nil {
		return nil, err
	}
	return stored.Body, nil
}

// isStored reports whether an entry has the current encoding and this Serializer encrypts nothing.
func (s *Serializer) isStored(e *watch.Entry) bool {
	return s.Transformer.isPlain && e.Encoding == s.Encoding
}

// Labels reads an entry's labels from its bytes, where these equal what a decode and an encode
// would give. Otherwise it returns false.
func (s *Serializer) Labels(ctx context.Context, e *watch.Entry) ([]sqlstore.Label, bool) {
	if !s.isStored(e) || s.mayChange(e) {
		return nil, false
	}
	stored, err := s.RepresentItem(ctx, e, &s.stored)
	if err != nil {
		return nil, false
	}
	return scanLabels(stored)
}

// Scalar reads the scalar at a path of members from an entry's bytes. It returns false where only a
// decoder can read it, and where a webhook converts the bytes. A missing scalar may have a default value if another
// version of the program, or a program with another schema, wrote the object.
func (s *Serializer) Scalar(e *watch.Entry, path []string) (string, bool) {
	if !s.Transformer.isPlain || s.mayChange(e) {
		return "", false
	}
	text, exists, ok := transcode.ScalarAt(e.Value(), path)
	return text, ok && (exists || e.Encoding == s.Encoding)
}

// NewBookmark makes the object of a bookmark: empty but for its revision. isInitialEnd marks the
// bookmark that ends the initial events (KEP-3157).
func (s *Serializer) NewBookmark(revision int64, isInitialEnd bool) (runtime.Object, error) {
	obj := s.NewFunc()
	if err := versioner.UpdateObject(obj, uint64(revision)); err != nil {
		return nil, err
	}
	if isInitialEnd {
		return obj, storage.AnnotateInitialEventsEndBookmark(obj)
	}
	return obj, nil
}

// EntryError is the error for an entry that can't be read. Where e is nil, err is returned as it is.
func (s *Serializer) EntryError(err error, e *watch.Entry) error {
	if e == nil {
		return err
	}
	return ReadError(err, s.Path(e.Key))
}

// mayChange reports whether decoding an entry again may give another object; see DecodedAge.
func (s *Serializer) mayChange(e *watch.Entry) bool {
	return s.DecodedAge > 0 && (s.Lossy || e.Encoding != s.Encoding)
}
