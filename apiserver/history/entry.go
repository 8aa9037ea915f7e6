package history

import (
	"bytes"
	"context"
	"io"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/storage/changes"
	"byre/sqlstore"
)

// entry is a change as watches share it: its item is made once, and each encoding of it.
type entry struct {
	sqlstore.Change
	created *changes.Creations

	// mu guards what follows.
	mu      sync.Mutex
	item    *Change
	encoded map[runtime.Identifier][]byte
}

var _ runtime.CacheableObject = (*entry)(nil)

// prepare makes the item, unless it is there. It fails if what the change replaced can't be read; the next call tries
// that again.
func (e *entry) prepare(ctx context.Context, s *Storage) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.item != nil {
		return nil
	}
	c := &e.Change
	if c.Old != nil && c.Old.Value == nil { // as it was published
		whole, err := s.tail.readWhole(ctx, c.Revision)
		if err != nil {
			return err
		}
		c = whole
	}
	var err error
	e.item, err = s.item(ctx, c, false)
	return err
}

// GetObject implements runtime.CacheableObject. The caller has called prepare.
func (e *entry) GetObject() runtime.Object { return e.item.DeepCopyObject() }

// CacheEncode implements runtime.CacheableObject.
func (e *entry) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	data, err := e.encoding(id, encode)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

func (e *entry) encoding(id runtime.Identifier, encode func(runtime.Object, io.Writer) error) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if data, known := e.encoded[id]; known {
		return data, nil
	}
	var data bytes.Buffer
	if err := encode(e.GetObject(), &data); err != nil {
		return nil, err
	}
	if e.encoded == nil {
		e.encoded = make(map[runtime.Identifier][]byte)
	}
	e.encoded[id] = data.Bytes()
	return data.Bytes(), nil
}

// GetObjectKind implements runtime.Object.
func (e *entry) GetObjectKind() schema.ObjectKind { return e.item.GetObjectKind() }

// DeepCopyObject implements runtime.Object.
func (e *entry) DeepCopyObject() runtime.Object { return e.GetObject() }
