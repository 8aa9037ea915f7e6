package storage

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
)

// buffers holds the buffers that a Store encodes into. An encoding is copied from its
// buffer to memory of its exact size, because it stays in memory for as long as it is
// current.
type buffers struct{ pool sync.Pool }

func (b *buffers) get() *bytes.Buffer {
	if buf, ok := b.pool.Get().(*bytes.Buffer); ok {
		return buf
	}
	return &bytes.Buffer{}
}

// maxPooledBuffer is the capacity, in bytes, of the largest buffer that is reused.
const maxPooledBuffer = 256 << 10

func (b *buffers) put(buf *bytes.Buffer) {
	if buf.Cap() <= maxPooledBuffer {
		buf.Reset()
		b.pool.Put(buf)
	}
}

// encode encodes an object in the storage version.
func (s *Store) encode(obj runtime.Object) ([]byte, error) { return s.encodeBy(s.cfg.Codec, obj) }

func (s *Store) encodeBy(encoder runtime.Encoder, obj runtime.Object) ([]byte, error) {
	buf := s.buffers.get()
	defer s.buffers.put(buf)
	if err := encoder.Encode(obj, buf); err != nil {
		return nil, err
	}
	return bytes.Clone(bytes.TrimRight(buf.Bytes(), "\n")), nil // encoders end an object with a newline
}

// preparedWrite is one object in the form in which it is to be stored.
type preparedWrite struct {
	obj        runtime.Object
	data       []byte // encoded
	value      []byte // encrypted
	uid        string
	generation int64
	attributes *sqlstore.Attributes // nil where AttrFunc fails
	grows      bool                 // whether the write makes the database larger
}

// prepare encrypts data, the encoding of obj, and finds the attributes that readers of
// the feed will need.
func (s *Store) prepare(ctx context.Context, obj runtime.Object, data []byte, at location) (preparedWrite, error) {
	w := preparedWrite{obj: obj, data: data}
	var err error
	if w.value, err = s.sealer.seal(ctx, data, at.path); err != nil {
		return preparedWrite{}, storage.NewInternalError(err)
	}
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return preparedWrite{}, err
	}
	w.uid, w.generation = string(accessor.GetUID()), s.cfg.Generation(accessor)
	// An object whose attributes cannot be found is stored all the same.
	if a, err := s.attributesOfObject(obj); err == nil {
		w.attributes = a
	}
	return w, nil
}

// commit writes a prepared object in place of the revision replaces, where 0 means a
// create. ttl is in seconds; 0 means that the object does not expire. commit returns
// the revision of the write.
func (s *Store) commit(ctx context.Context, at location, w preparedWrite, replaces int64, ttl uint64) (int64, error) {
	write := sqlstore.Write{
		Op:         sqlstore.Update,
		Key:        at.Key,
		Replaces:   replaces,
		UID:        w.uid,
		Generation: w.generation,
		Form:       s.cfg.Form,
		Value:      w.value,
		Attributes: w.attributes,
		Grows:      w.grows,
	}
	if replaces == 0 {
		write.Op = sqlstore.Create
	}
	write.Author = author(ctx, write.Op)
	write.Requires = s.cfg.Requires(write.Op)
	if ttl > 0 {
		// The store compares expiries with the database's clock.
		write.Expires = s.cfg.Clock.Now().Add(s.cfg.Feed.ClockAhead() + time.Duration(ttl)*time.Second)
	}
	change, err := s.writeRecord(ctx, write)
	if errors.Is(err, sqlstore.ErrKeyTooLong) {
		err = s.keyTooLong(at.Key)
	}
	return change.Revision, err
}

// setOutput sets out to obj at a revision. It neither decodes nor copies, because an
// object that was just written equals what a decode of its encoding would give. From
// then on out owns what obj refers to.
func (s *Store) setOutput(out, obj runtime.Object, data []byte, revision int64) error {
	to, from := reflect.ValueOf(out), reflect.ValueOf(obj)
	if s.cfg.Lossy || to.Type() != from.Type() {
		return undecodableError(s.decodeInto(data, out, revision))
	}
	to.Elem().Set(from.Elem())
	return s.versioner.UpdateObject(out, uint64(revision))
}
