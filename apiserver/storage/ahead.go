package storage

import (
	"context"
	"iter"

	"k8s.io/apiserver/pkg/storage"

	"byre/apiserver/storage/encoding"
	"byre/watch"
)

const (
	// aheadRecords and aheadBytes bound the records, and the bytes of their values,
	// that are decoded or encoded ahead together.
	aheadRecords = 500
	aheadBytes   = 1 << 20
)

// decodeAhead passes the values of entries that are about to be decoded, to be compared with
// a predicate and shown in a Format, to Config.DecodeAhead. f is nil for a reader of objects.
// It skips an entry that can't be decrypted: the reader of that entry gets the error.
func (s *selector) decodeAhead(ctx context.Context, p *storage.SelectionPredicate, f *encoding.Format, entries []*watch.Entry) {
	if s.prepare == nil {
		return
	}
	var values [][]byte
	size := 0
	for _, e := range entries {
		isSelected := selectsEverything(p) || s.knownAttributes(e) != nil
		if f != nil && isSelected && s.serializer.InMemory(e, f) != nil {
			continue // it is not decoded
		}
		if data, _, err := s.serializer.Open(ctx, e); err == nil {
			values = append(values, data)
			size += len(data)
		}
		if len(values) == aheadRecords || size >= aheadBytes {
			s.prepare(ctx, values)
			values, size = nil, 0
		}
	}
	if len(values) > 0 && ctx.Err() == nil {
		s.prepare(ctx, values)
	}
}

// withDecodeAhead yields the same entries. Before it yields the first entry of a page, it decodes
// the page ahead.
func (s *selector) withDecodeAhead(ctx context.Context, l *listRequest, entries iter.Seq[*watch.Entry]) iter.Seq[*watch.Entry] {
	if s.prepare == nil {
		return entries
	}
	return func(yield func(*watch.Entry) bool) {
		var page []*watch.Entry
		size := 0
		yieldPage := func() bool {
			s.decodeAhead(ctx, &l.opts.Predicate, l.format, page)
			for _, e := range page {
				if !yield(e) {
					return false
				}
			}
			page, size = page[:0], 0
			return true
		}
		for e := range entries {
			page, size = append(page, e), size+e.Size()
			if (len(page) == aheadRecords || size >= aheadBytes) && !yieldPage() {
				return
			}
		}
		yieldPage()
	}
}

// decodePageAhead decodes the entries of a page with a limit ahead.
func (s *selector) decodePageAhead(ctx context.Context, l *listRequest, picked []selected) {
	if s.prepare == nil {
		return
	}
	entries := make([]*watch.Entry, 0, len(picked))
	for _, p := range picked {
		if p.err == nil {
			entries = append(entries, p.entry)
		}
	}
	s.decodeAhead(ctx, &l.opts.Predicate, l.format, entries)
}
