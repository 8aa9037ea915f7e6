package storage

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"

	"byre/apiserver/storage/encoding"
	"byre/watch"
)

// Get implements storage.Interface.
func (s *Store) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	e, path, err := s.entry(ctx, key, opts)
	if err != nil {
		if opts.IgnoreNotFound && storage.IsNotFound(err) {
			return runtime.SetZeroValue(out)
		}
		return err
	}
	return keyError(s.serializer.ReadInto(ctx, e, out), path)
}

// entry reads the entry of a key, and returns its path. It fails with NotFound if the object does not exist.
func (s *Store) entry(ctx context.Context, key string, opts storage.GetOptions) (*watch.Entry, string, error) {
	at, err := s.records.locate(key)
	if err != nil {
		return nil, "", err
	}
	e, err := s.records.entry(ctx, at, opts.ResourceVersion)
	if err == nil && e == nil {
		err = storage.NewKeyNotFoundError(at.path, 0)
	}
	return e, at.path, err
}

// Load loads the resource into memory, so that later reads at resourceVersion "0" are
// answered without a query.
func (s *Store) Load(ctx context.Context) error {
	if s.cfg.Feed.IsLoaded(s.records.resource()) {
		return nil
	}
	_, err := s.cfg.Feed.Snapshot(ctx, s.records.resource())
	return s.records.apiError(err, s.records.prefix)
}

// Prefix is what the keys of the Store's objects begin with, without a slash at its
// end.
func (s *Store) Prefix() string { return strings.TrimSuffix(s.records.prefix, "/") }

// GetEncoded is Get in a Format. It fails with NotFound if the object does not exist,
// even where opts.IgnoreNotFound is set.
func (s *Store) GetEncoded(ctx context.Context, key string, opts storage.GetOptions, f *encoding.Format) (encoding.Encoded, error) {
	e, path, err := s.entry(ctx, key, opts)
	if err != nil {
		return encoding.Encoded{}, err
	}
	represent := s.serializer.Represent
	if opts.ResourceVersion == "" {
		represent = s.serializer.RepresentCurrent
	}
	r, err := represent(ctx, e, f)
	if err != nil {
		return encoding.Encoded{}, keyError(err, path)
	}
	return s.serializer.Encoded(f, r, e, e.Revision), nil
}

// Decrypt returns the plain text of a Record's Value. transformer is the one of the
// object's resource, which may be nil, and path is the object's path in etcd's form.
func Decrypt(ctx context.Context, transformer value.Transformer, stored []byte, path string) ([]byte, error) {
	t := encoding.NewTransformer(transformer)
	data, _, err := t.Decrypt(ctx, stored, path)
	return data, err
}
