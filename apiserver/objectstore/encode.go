package objectstore

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
)

// programName is the author of what no request asked for.
const programName = "byre"

// buffers are shared by all Stores of a process: an encoding is copied out to
// its exact size, because it stays in memory for as long as it is current.
type buffers struct{ pool sync.Pool }

func (b *buffers) get() *bytes.Buffer {
	if buf, ok := b.pool.Get().(*bytes.Buffer); ok {
		return buf
	}
	return &bytes.Buffer{}
}

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
	return bytes.Clone(trimNewline(buf.Bytes())), nil
}

// written is one object made ready to be stored.
type written struct {
	obj        runtime.Object
	data       []byte // encoded
	value      []byte // encrypted
	uid        string
	attributes *sqlstore.Attributes // nil where they can't be told
	grows      bool                 // it makes the database larger than what it replaces
}

// prepare encrypts what was encoded, and finds the attributes that the feed will be asked for.
func (s *Store) prepare(ctx context.Context, obj runtime.Object, data []byte, at object) (written, error) {
	w := written{obj: obj, data: data}
	var err error
	if w.value, err = s.sealer.seal(ctx, data, at.path); err != nil {
		return written{}, storage.NewInternalError(err)
	}
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return written{}, err
	}
	w.uid = string(accessor.GetUID())
	// An object whose attributes can't be told is stored all the same.
	if a, err := s.attributesOfObject(obj); err == nil {
		w.attributes = a
	}
	return w, nil
}

// commit writes a prepared object in place of the revision it replaces (0: none).
func (s *Store) commit(ctx context.Context, at object, w written, replaces int64, ttl uint64) (int64, error) {
	write := sqlstore.Write{
		Op:         sqlstore.Update,
		Key:        at.Key,
		Replaces:   replaces,
		UID:        w.uid,
		Form:       s.cfg.Form,
		Value:      w.value,
		Author:     author(ctx),
		Attributes: w.attributes,
		Grows:      w.grows,
	}
	if replaces == 0 {
		write.Op = sqlstore.Create
	}
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

// setOutput sets out to obj at a revision. It neither decodes nor copies: an object that
// was just written equals what a decode of its encoding would give, and what obj refers
// to belongs to out from then on.
func (s *Store) setOutput(out, obj runtime.Object, data []byte, revision int64) error {
	to, from := reflect.ValueOf(out), reflect.ValueOf(obj)
	if s.cfg.Lossy || to.Type() != from.Type() {
		return undecodable(s.decodeInto(data, out, revision))
	}
	to.Elem().Set(from.Elem())
	return s.versioner.UpdateObject(out, uint64(revision))
}

type verbKey struct{}

// WithVerb names the verb that changes made under the context are kept with,
// where it is not the request's own: an apply comes as a patch.
func WithVerb(ctx context.Context, verb string) context.Context {
	return context.WithValue(ctx, verbKey{}, verb)
}

func author(ctx context.Context) sqlstore.Author {
	a := sqlstore.Author{User: programName, AuditID: audit.GetAuditIDTruncated(ctx)}
	if user, ok := request.UserFrom(ctx); ok && user.GetName() != "" {
		a.User = user.GetName()
	}
	if verb, ok := ctx.Value(verbKey{}).(string); ok {
		a.Verb = verb
	} else if info, ok := request.RequestInfoFrom(ctx); ok && info != nil {
		a.Verb = info.Verb
	}
	return a
}
