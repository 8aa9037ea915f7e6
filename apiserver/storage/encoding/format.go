package encoding

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime"

	"byre/apiserver/storage/transcode"
	"byre/sqlstore"
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
	return &Format{key: watch.Format{Name: name}, encoder: encode,
		represent: func(body []byte, _ int64) (watch.Representation, error) {
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

// find returns the representation of an entry if it is in memory, and otherwise nil. buffer is that of
// watch.Representations.Get.
func (f *Format) find(s *Serializer, e *watch.Entry, buffer *[]byte) *watch.Representation {
	r := s.Cache.Get(&e.Representations, &f.key, buffer)
	if r == nil && f.whole != nil {
		if whole := f.whole.find(s, e, buffer); whole != nil {
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
	if s.isStored(e) {
		e.Share(&r)
	}
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
	if r := f.from.find(s, e, nil); r != nil {
		return obj, decode(r.Body)
	}
	err := f.from.transcodeStored(ctx, s, e, decode)
	if errors.Is(err, transcode.ErrUnexpected) {
		return s.Object(ctx, e)
	}
	return obj, err
}

// encode encodes an object, which it may change.
func (f *Format) encode(
	ctx context.Context, s *Serializer, obj runtime.Object, revision int64,
) (watch.Representation, error) {
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

// InMemory returns the representation of an entry in a Format if it is in memory, and otherwise nil. buffer is that of
// watch.Representations.Get.
func (s *Serializer) InMemory(e *watch.Entry, f *Format, buffer *[]byte) *watch.Representation {
	return f.find(s, e, buffer)
}

// Represent returns the representation of an entry in a Format, and makes it if
// necessary.
func (s *Serializer) Represent(ctx context.Context, e *watch.Entry, f *Format) (*watch.Representation, error) {
	if r := f.find(s, e, nil); r != nil {
		return r, nil
	}
	return s.Cache.GetOrMake(ctx, &e.Representations, &f.key, s.maker(e, f))
}

// RepresentItem is Represent for an item of a list. It uses Cache.Scan, so
// that a large list does not evict what other readers use.
func (s *Serializer) RepresentItem(ctx context.Context, e *watch.Entry, f *Format) (*watch.Representation, error) {
	if r := f.find(s, e, nil); r != nil {
		return r, nil
	}
	if f.companion != nil {
		_, _ = s.RepresentItem(ctx, e, f.companion) // whoever asks for this Format gets the error
	}
	return s.Cache.Scan(ctx, &e.Representations, &f.key, s.maker(e, f))
}

// RepresentCurrent is Represent for a reader who wants what the entry is decoded to now; see
// DecodedAge.
func (s *Serializer) RepresentCurrent(ctx context.Context, e *watch.Entry, f *Format) (*watch.Representation, error) {
	if !s.mayChange(e) {
		return s.Represent(ctx, e, f)
	}
	made, err := s.maker(e, f)(ctx)
	return &made, err
}

// Size returns the length of the representation of an entry, where it is known; 0 otherwise. A
// length may be known without the representation being in memory.
func (s *Serializer) Size(e *watch.Entry, f *Format) int {
	n := e.Representations.Size(&f.key)
	if n == 0 && f.whole != nil {
		n = int(e.Representations.Marks(&f.whole.key)[markMessageEnd]) // as cutMetadata
	}
	return n
}

func (s *Serializer) maker(e *watch.Entry, f *Format) watch.MakeRepresentation {
	return func(ctx context.Context) (watch.Representation, error) {
		made, err := f.make(ctx, s, e)
		if s.mayChange(e) {
			made.Expires = s.Cache.After(s.DecodedAge)
		}
		return made, err
	}
}

// Encoded makes the Encoded of an entry at a revision.
func (s *Serializer) Encoded(f *Format, r *watch.Representation, e *watch.Entry, revision int64) Encoded {
	return Encoded{f, f.atRevision(r, e, revision), revision, s, e}
}

// Bookmark returns the object of a bookmark in a Format; see NewBookmark.
func (s *Serializer) Bookmark(ctx context.Context, f *Format, revision int64, isInitialEnd bool) (Encoded, error) {
	obj, err := s.NewBookmark(revision, isInitialEnd)
	if err != nil {
		return Encoded{}, err
	}
	r, err := f.encode(ctx, s, obj, revision)
	return Encoded{format: f, r: &r, revision: revision}, err
}

// Encoded is one object in a Format. It is immutable.
type Encoded struct {
	format   *Format // nil for the result of a write
	r        *watch.Representation
	revision int64
	// serializer and entry say what the object was made of; nil for a bookmark and for the
	// result of a write.
	serializer *Serializer
	entry      *watch.Entry
}

// EncodedStored is an object of which data is the stored JSON.
func EncodedStored(data []byte, revision int64) Encoded {
	r := newJSON(data)
	return Encoded{r: &r, revision: revision}
}

// In returns the object in another Format of the Serializer that made it. buffer is that of watch.Representations.Get.
func (e Encoded) In(ctx context.Context, f *Format, buffer *[]byte) (Encoded, error) {
	r := f.find(e.serializer, e.entry, buffer)
	if r == nil {
		var err error
		if r, err = e.serializer.Represent(ctx, e.entry, f); err != nil {
			return Encoded{}, e.serializer.EntryError(err, e.entry)
		}
	}
	return e.serializer.Encoded(f, r, e.entry, e.revision), nil
}

// Object decodes the object as its Format needs it, without keeping the result in the
// cache. The caller owns the object.
func (e Encoded) Object(ctx context.Context) (runtime.Object, error) {
	obj, err := e.format.decode(ctx, e.serializer, e.entry)
	if err != nil {
		return nil, e.serializer.EntryError(err, e.entry)
	}
	return obj, nil
}

// Body is what the Format's encoder made of the object: in a Format of protobuf, its message. The caller must not write
// to it.
func (e Encoded) Body() []byte { return e.r.Body }

// ResourceVersion is the revision of the object's state, or of the delete that ended
// it.
func (e Encoded) ResourceVersion() int64 { return e.revision }

// Len is an upper bound of the bytes that AppendJSON appends, and close to their
// number.
func (e Encoded) Len() int { return len(e.r.Body) + memberLen }

// AppendJSON appends the object to dst, with its resourceVersion. Without typeMeta it
// leaves out the kind and the apiVersion that a typed object begins with, as the items
// of a typed list do. Unstructured objects keep theirs. The Encoded must be in a Format
// of JSON.
func (e Encoded) AppendJSON(dst []byte, typeMeta bool) []byte {
	return appendJSON(dst, e.r, e.revision, typeMeta)
}

// AppendMetadataJSON appends only the object's metadata to dst, in the form that
// AppendJSON writes.
func (e Encoded) AppendMetadataJSON(dst []byte) []byte {
	return appendMetadata(dst, e.r, e.revision)
}

// The marks of a representation in JSON, as offsets into its body. The body has no
// resourceVersion; AppendJSON inserts it.
const (
	// markSplice is where the resourceVersion is inserted.
	markSplice = iota
	// markTypeMeta is where the members after kind and apiVersion begin, in a typed
	// object, which begins with these two; 0 in other objects.
	markTypeMeta
	// markMetadata and markMetadataEnd enclose the value of the metadata; both are 0
	// where the object has none.
	markMetadata
	markMetadataEnd
)

const (
	memberStart = `"resourceVersion":"`
	memberEnd   = `"`
	// memberLen is an upper bound of the bytes that inserting a resourceVersion adds.
	memberLen = 48
)

// newJSON makes the representation of an object's JSON and finds its marks. The
// resourceVersion of a typed object is inserted where encoding/json would write it,
// after uid. In an unstructured object, whose keys are sorted, it is inserted in order.
func newJSON(body []byte) watch.Representation {
	r := watch.Representation{Body: body}
	top := transcode.NewScanner(body, 0)
	typed := false
	for first := true; top.NextMember(); first = false {
		key := top.ReadKey()
		if first {
			typed = string(key) == "kind"
		}
		start := top.Pos
		top.SkipValue()
		if typed && r.Marks[markTypeMeta] == 0 && string(key) == "apiVersion" && top.NextIs(',') {
			r.Marks[markTypeMeta] = int32(top.Pos + 1)
		}
		if string(key) == "metadata" && start < len(body) && body[start] == '{' {
			r.Marks[markMetadata], r.Marks[markMetadataEnd] = int32(start), int32(top.Pos)
			r.Marks[markSplice] = int32(splicePlace(body, start, typed))
			return r
		}
	}
	// An object without metadata gets metadata with only the resourceVersion.
	r.Marks[markSplice] = max(1, r.Marks[markTypeMeta])
	return r
}

// splicePlace returns where the resourceVersion is inserted into the metadata that
// begins at offset.
func splicePlace(body []byte, offset int, typed bool) int {
	in := transcode.NewScanner(body, offset)
	last := offset + 1
	for in.NextMember() {
		key := in.ReadKey()
		if typed && !isBeforeResourceVersion(key) || !typed && string(key) > "resourceVersion" {
			break
		}
		in.SkipValue()
		last = in.Pos
	}
	return last
}

// isBeforeResourceVersion reports whether encoding/json writes a member of ObjectMeta before
// resourceVersion.
func isBeforeResourceVersion(key []byte) bool {
	switch string(key) {
	case "name", "generateName", "namespace", "selfLink", "uid":
		return true
	}
	return false
}

// appendJSON appends an object with its resourceVersion. Without typeMeta it leaves out
// the leading kind and apiVersion of a typed object.
func appendJSON(dst []byte, r *watch.Representation, revision int64, typeMeta bool) []byte {
	from := 0
	if after := int(r.Marks[markTypeMeta]); !typeMeta && after > 0 {
		dst = append(dst, '{')
		from = after
	}
	return appendSpliced(dst, r, from, len(r.Body), revision)
}

// appendMetadata appends the metadata with its resourceVersion.
func appendMetadata(dst []byte, r *watch.Representation, revision int64) []byte {
	if r.Marks[markMetadata] == 0 {
		dst = append(dst, '{')
		return append(appendVersion(dst, revision), '}')
	}
	return appendSpliced(dst, r, int(r.Marks[markMetadata]), int(r.Marks[markMetadataEnd]), revision)
}

// appendSpliced appends the part of the body between from and to, and inserts the
// resourceVersion. markSplice is within this part.
func appendSpliced(dst []byte, r *watch.Representation, from, to int, revision int64) []byte {
	splice := int(r.Marks[markSplice])
	dst = append(dst, r.Body[from:splice]...)
	next := transcode.NewScanner(r.Body, splice)
	switch {
	case r.Marks[markMetadata] == 0:
		dst = append(dst, `"metadata":{`...)
		dst = append(appendVersion(dst, revision), '}')
		if !next.NextIs('}') {
			dst = append(dst, ',')
		}
	case r.Body[splice-1] != '{':
		dst = appendVersion(append(dst, ','), revision)
	default:
		dst = appendVersion(dst, revision)
		if !next.NextIs('}') {
			dst = append(dst, ',')
		}
	}
	return append(dst, r.Body[splice:to]...)
}

func appendVersion(dst []byte, revision int64) []byte {
	dst = append(dst, memberStart...)
	dst = strconv.AppendInt(dst, revision, 10)
	return append(dst, memberEnd...)
}

// scanLabels reads the labels from an object's JSON. It returns false where only a
// decoder can read them.
func scanLabels(r *watch.Representation) ([]sqlstore.Label, bool) {
	if r.Marks[markMetadata] == 0 {
		return nil, true
	}
	for in := (transcode.NewScanner(r.Body[:r.Marks[markMetadataEnd]],
		int(r.Marks[markMetadata]))); in.NextMember(); in.SkipValue() {
		if string(in.ReadKey()) != "labels" {
			continue
		}
		found := []sqlstore.Label{}
		for in.NextMember() {
			key := in.ReadKey()
			value, plain := in.ReadPlainString()
			if !plain || bytes.IndexByte(key, '\\') >= 0 {
				return nil, false
			}
			found = append(found, sqlstore.Label{Key: string(key), Value: value})
		}
		return found, in.NextIs('}')
	}
	return nil, true
}

// The marks of a representation in protobuf, as offsets into its body. The body is the
// message of the object, with the resourceVersion of the record. Only the last state of
// a deleted object is shown with another resourceVersion, that of the delete.
const (
	// markMessage and markMessageEnd enclose the content of the metadata.
	markMessage = iota
	markMessageEnd
	// markVersion and markVersionEnd enclose the field of the resourceVersion.
	markVersion
	markVersionEnd
)

// The tags of ObjectMeta in an object (the first field of every API type) and of
// resourceVersion in ObjectMeta (k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto).
const (
	fieldResourceVersion = 6
	tagMetadata          = 1<<3 | byte(protowire.BytesType)
	tagResourceVersion   = fieldResourceVersion<<3 | byte(protowire.BytesType)
)

var errNoMetadata = errors.New("a protobuf message of an API object does not begin with its metadata")

// newProtobuf makes the representation of a message whose resourceVersion is empty.
// Upstream writes the empty field, as it does with all fields of ObjectMeta that are
// not pointers.
func newProtobuf(message []byte, revision int64) (watch.Representation, error) {
	r := watch.Representation{Body: message}
	if len(message) == 0 || message[0] != tagMetadata {
		return r, errNoMetadata
	}
	metadata, n := protowire.ConsumeBytes(message[1:])
	if n < 0 {
		return r, errNoMetadata
	}
	end := 1 + n
	r.Marks[markMessage], r.Marks[markMessageEnd] = int32(end-len(metadata)), int32(end)
	for from := end - len(metadata); ; {
		number, _, n := protowire.ConsumeField(message[from:end])
		if n < 0 {
			return r, errNoMetadata
		}
		if number == fieldResourceVersion {
			r.Marks[markVersion], r.Marks[markVersionEnd] = int32(from), int32(from+n)
			return withRevision(&r, revision), nil
		}
		from += n
	}
}

// withRevision makes a copy of a representation that has another resourceVersion.
func withRevision(r *watch.Representation, revision int64) watch.Representation {
	start, end := int(r.Marks[markMessage]), int(r.Marks[markMessageEnd])
	from, to := int(r.Marks[markVersion]), int(r.Marks[markVersionEnd])
	var digits [20]byte
	version := strconv.AppendInt(digits[:0], revision, 10)
	size := end - start - (to - from) + 2 + len(version)

	body := make([]byte, 0, len(r.Body)+len(version)+4)
	body = append(body, tagMetadata)
	body = protowire.AppendVarint(body, uint64(size))
	out := watch.Representation{}
	out.Marks[markMessage] = int32(len(body))
	body = append(body, r.Body[start:from]...)
	out.Marks[markVersion] = int32(len(body))
	body = append(body, tagResourceVersion, byte(len(version)))
	body = append(body, version...)
	out.Marks[markVersionEnd] = int32(len(body))
	body = append(body, r.Body[to:end]...)
	out.Marks[markMessageEnd] = int32(len(body))
	out.Body = append(body, r.Body[end:]...)
	return out
}

// cutMetadata returns the metadata of a whole object as a message of
// PartialObjectMetadata. The metadata is the first field of both messages, so the
// result shares the memory of whole.
func cutMetadata(whole *watch.Representation) *watch.Representation {
	end := whole.Marks[markMessageEnd]
	return &watch.Representation{Body: whole.Body[:end:end], Marks: whole.Marks}
}
