package encoding

import (
	"context"

	"byre/watch"
)

// InMemory returns the representation of an entry in a Format if it is in memory, and otherwise nil.
func (s *Serializer) InMemory(e *watch.Entry, f *Format) *watch.Representation {
	return f.find(s, e)
}

// Represent returns the representation of an entry in a Format, and makes it if
// necessary.
func (s *Serializer) Represent(ctx context.Context, e *watch.Entry, f *Format) (*watch.Representation, error) {
	if r := f.find(s, e); r != nil {
		return r, nil
	}
	return s.Cache.GetOrMake(ctx, &e.Representations, &f.key, s.maker(e, f))
}

// RepresentItem is Represent for an item of a list. It uses Cache.Scan, so
// that a large list does not evict what other readers use.
func (s *Serializer) RepresentItem(ctx context.Context, e *watch.Entry, f *Format) (*watch.Representation, error) {
	if r := f.find(s, e); r != nil {
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
	if n == 0 {
		if r := f.find(s, e); r != nil {
			n = len(r.Body)
		}
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
