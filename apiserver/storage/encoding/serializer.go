package encoding

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

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
		if r := s.stored.find(s, e, nil); r != nil {
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
	if s.isStored(e) && !HasWrapped(e) {
		return e.Value(), nil
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

// A stored value is always JSON text. A value that is not encrypted is the object
// itself. An encrypted value is a JSON string: the readable prefix that upstream puts
// before the ciphertext ("k8s:enc:aescbc:v1:key1:"), followed by the ciphertext in
// base64. If a transformer writes no such prefix, the string begins with rawPrefix.
const (
	encryptedPrefix = "k8s:enc:"
	rawPrefix       = "byre:raw:"
	// prefixColons is how many colons a readable prefix has.
	prefixColons = 5
)

// Transformer encrypts and decrypts values.
type Transformer struct {
	value.Transformer
	// isPlain is true when nothing is encrypted. Encrypted values are still recognised, and
	// refused with an error that says so.
	isPlain bool
}

// NewTransformer makes a Transformer; nil means no encryption.
func NewTransformer(transformer value.Transformer) Transformer {
	if transformer == nil {
		return Transformer{identity.NewEncryptCheckTransformer(), true}
	}
	return Transformer{transformer, false}
}

// IsPlain reports whether nothing is encrypted.
func (t *Transformer) IsPlain() bool { return t.isPlain }

// Encrypt encrypts an encoded object. path is the path under which the object is stored.
func (t *Transformer) Encrypt(ctx context.Context, data []byte, path string) ([]byte, error) {
	if t.isPlain {
		return data, nil
	}
	out, err := t.TransformToStorage(ctx, data, value.DefaultContext(path))
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(out, []byte("{")) {
		return out, nil
	}
	return WrapEncrypted(out), nil
}

// Decrypt is the reverse of Encrypt. stale reports whether the value should be written again,
// because Encrypt would now use another key or provider.
func (t *Transformer) Decrypt(ctx context.Context, stored []byte, path string) (data []byte, stale bool, err error) {
	wrapped := IsWrapped(stored)
	if t.isPlain && !wrapped {
		return stored, false, nil
	}
	if wrapped {
		if stored, err = UnwrapEncrypted(stored); err != nil {
			return nil, false, err
		}
	}
	return t.TransformFromStorage(ctx, stored, value.DefaultContext(path))
}

// IsEncrypted reports whether bytes, in the form in which etcd has them, were written
// by a provider of an EncryptionConfiguration.
func IsEncrypted(encrypted []byte) bool { return bytes.HasPrefix(encrypted, []byte(encryptedPrefix)) }

// IsWrapped reports whether a Record's Value has the form that WrapEncrypted returns.
func IsWrapped(stored []byte) bool { return bytes.HasPrefix(stored, []byte(`"`)) }

// HasWrapped is IsWrapped for the Value of an entry, which it does not decompress.
func HasWrapped(e *watch.Entry) bool { return e.First() == '"' }

// WrapEncrypted makes the Value of a Record from encrypted bytes. A Transformer can decrypt
// it if the object has the path with which it was encrypted. That path is the object's
// key in etcd, except for allocations.
func WrapEncrypted(encrypted []byte) []byte {
	prefix := ReadablePrefix(encrypted)
	rest := encrypted[len(prefix):]
	if len(prefix) == 0 {
		prefix = []byte(rawPrefix)
	}
	out := make([]byte, 0, len(prefix)+base64.StdEncoding.EncodedLen(len(rest))+2)
	out = append(out, '"')
	out = append(out, prefix...)
	out = base64.StdEncoding.AppendEncode(out, rest)
	return append(out, '"')
}

// ReadablePrefix returns the leading "k8s:enc:<provider>:<version>:<key>:" if a JSON
// string can contain it without escapes, and otherwise nil.
func ReadablePrefix(encrypted []byte) []byte {
	if !bytes.HasPrefix(encrypted, []byte(encryptedPrefix)) {
		return nil
	}
	colons := 0
	for i, c := range encrypted {
		switch {
		case c < ' ' || c > '~' || c == '"' || c == '\\':
			return nil
		case c == ':':
			colons++
		}
		if colons == prefixColons {
			return encrypted[:i+1]
		}
	}
	return nil
}

var errNotEncrypted = errors.New("a stored string is not an encrypted value")

// UnwrapEncrypted is the reverse of WrapEncrypted.
func UnwrapEncrypted(stored []byte) ([]byte, error) {
	var text string
	if err := json.Unmarshal(stored, &text); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotEncrypted, err)
	}
	prefix := ReadablePrefix([]byte(text))
	rest := text[len(prefix):]
	if len(prefix) == 0 {
		var ok bool
		if rest, ok = strings.CutPrefix(text, rawPrefix); !ok {
			return nil, errNotEncrypted
		}
	}
	raw, err := base64.StdEncoding.AppendDecode(bytes.Clone(prefix), []byte(rest))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotEncrypted, err)
	}
	return raw, nil
}

// CorruptError says that a stored value cannot be decrypted or decoded.
type CorruptError struct {
	// IsEncrypted is true if the value could not be decrypted; else it could not be decoded.
	IsEncrypted bool
	Revision    int64
	Err         error
}

// ConversionError says that a stored value could not be converted to the version that is read: what converts it, such
// as a webhook, failed or refused. The value itself is not corrupt.
type ConversionError struct{ Err error }

// Unwrap returns the reason.
func (e *ConversionError) Unwrap() error { return e.Err }

// Error is the reason.
func (e *ConversionError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *CorruptError) Unwrap() error { return e.Err }

// Error has upstream's words.
func (e *CorruptError) Error() string {
	what := "object not decodable"
	if e.IsEncrypted {
		what = "data from the storage is not transformable"
	}
	return fmt.Sprintf("%s revision=%d: %v", what, e.Revision, e.Err)
}

// IsOfAbsentPlugin reports whether an error says that a KMS plugin is away: the value may be read later. A plugin that
// refuses has lost the key.
func IsOfAbsentPlugin(err error) bool {
	s, isPlugins := status.FromError(err)
	return isPlugins &&
		slices.Contains([]codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted,
			codes.Aborted}, s.Code())
}

// AllowsUnsafeDeletion reports whether errors name corrupt objects, so that an administrator
// can delete them without reading them (KEP-3926).
func AllowsUnsafeDeletion() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
}

// ReadError is the error that a caller gets for a value that can't be read.
func ReadError(err error, path string) error {
	var corrupt *CorruptError
	switch {
	case !errors.As(err, &corrupt):
		return err
	case AllowsUnsafeDeletion():
		return storage.NewCorruptObjError(path, err)
	case corrupt.IsEncrypted:
		return storage.NewInternalError(corrupt.Err)
	}
	return corrupt.Err
}

// undecodableError is the error that a caller gets for an object that it has just written
// and that can't be decoded. It contains the decoder's reason, and nothing about the
// storage.
func undecodableError(err error) error {
	var corrupt *CorruptError
	if errors.As(err, &corrupt) {
		return corrupt.Err
	}
	return err
}
