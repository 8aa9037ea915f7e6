package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
	"byre/watch"
	"byre/watch/representation"
)

// Get implements storage.Interface.
func (s *Store) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	at, err := s.locate(key)
	if err != nil {
		return err
	}
	e, err := s.entry(ctx, at, opts.ResourceVersion)
	if err != nil {
		return err
	}
	if e == nil {
		if opts.IgnoreNotFound {
			return runtime.SetZeroValue(out)
		}
		return storage.NewKeyNotFoundError(at.path, 0)
	}
	return s.keyError(s.readInto(ctx, e, out), at.path)
}

// Load loads the resource into memory, so that later reads at resourceVersion "0" are
// answered without a query.
func (s *Store) Load(ctx context.Context) error {
	if _, _, loaded := s.cfg.Feed.Lookup(s.at("", "").Key); loaded {
		return nil
	}
	_, err := s.cfg.Feed.Snapshot(ctx, s.resource())
	return s.apiError(err, s.prefix)
}

// Prefix is what the keys of the Store's objects begin with, without a slash at its
// end.
func (s *Store) Prefix() string { return strings.TrimSuffix(s.prefix, "/") }

// GetEncoded is Get in a Format. It fails with NotFound if the object does not exist,
// even where opts.IgnoreNotFound is set.
func (s *Store) GetEncoded(ctx context.Context, key string, opts storage.GetOptions, f *Format) (Encoded, error) {
	at, err := s.locate(key)
	if err != nil {
		return Encoded{}, err
	}
	e, err := s.entry(ctx, at, opts.ResourceVersion)
	if err != nil {
		return Encoded{}, err
	}
	if e == nil {
		return Encoded{}, storage.NewKeyNotFoundError(at.path, 0)
	}
	var r *representation.Representation
	if opts.ResourceVersion == "" && s.mayChange(e) {
		var made representation.Representation
		made, err = s.maker(e, f)(ctx)
		r = &made
	} else {
		r, err = s.represent(ctx, e, f)
	}
	if err != nil {
		return Encoded{}, s.keyError(err, at.path)
	}
	return s.newEncoded(f, r, e, e.Revision), nil
}

// entry reads one object that is at least as recent as resourceVersion demands. It
// returns nil if the object does not exist.
func (s *Store) entry(ctx context.Context, at location, resourceVersion string) (*watch.Entry, error) {
	asked, err := s.parseVersion(resourceVersion)
	if err != nil {
		return nil, err
	}
	if _, _, loaded := s.cfg.Feed.Lookup(at.Key); !loaded {
		return s.storedEntry(ctx, at, asked)
	}
	if resourceVersion == "" {
		if _, err := s.cfg.Feed.Latest(ctx); err != nil {
			return nil, s.apiError(err, at.path)
		}
	} else if err := s.waitFor(ctx, asked); err != nil {
		return nil, err
	}
	e, _, loaded := s.cfg.Feed.Lookup(at.Key)
	if !loaded { // the feed has dropped the resource in the meantime
		return s.storedEntry(ctx, at, asked)
	}
	return e, nil
}

// storedEntry reads one object from the database. It serves resources that the feed has
// not loaded.
func (s *Store) storedEntry(ctx context.Context, at location, asked int64) (*watch.Entry, error) {
	if err := s.waitFor(ctx, asked); err != nil {
		return nil, err
	}
	record, _, err := s.getRecord(ctx, at.Key)
	missing := errors.Is(err, sqlstore.ErrNotFound)
	if err != nil && !missing {
		return nil, s.apiError(err, at.path)
	}
	if missing {
		return nil, nil
	}
	return watch.NewEntry(record), nil
}

func (s *Store) parseVersion(resourceVersion string) (int64, error) {
	asked, err := s.versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	return int64(asked), nil
}
