package objectstore

import (
	"context"
	"iter"

	"byre/watch"
)

const (
	// aheadRecords and aheadBytes bound what is decoded or encoded ahead together.
	aheadRecords = 500
	aheadBytes   = 1 << 20
)

// decodeAhead tells Config.DecodeAhead of entries that are about to be decoded. It skips
// an entry that can't be decrypted: the reader of that entry gets the error.
func (s *Store) decodeAhead(ctx context.Context, entries []*watch.Entry) {
	if s.cfg.DecodeAhead == nil {
		return
	}
	var values [][]byte
	size := 0
	for _, e := range entries {
		if s.cfg.Feed.Representations().Get(&e.Representations, &s.stored.form) != nil {
			continue // it is decoded from that
		}
		if data, _, err := s.open(ctx, &e.Record); err == nil {
			values = append(values, data)
			size += len(data)
		}
		if len(values) == aheadRecords || size >= aheadBytes {
			s.cfg.DecodeAhead(ctx, values)
			values, size = nil, 0
		}
	}
	if len(values) > 0 && ctx.Err() == nil {
		s.cfg.DecodeAhead(ctx, values)
	}
}

// ahead yields the same entries. It decodes them ahead one page at a time.
func (s *Store) ahead(ctx context.Context, entries iter.Seq[*watch.Entry]) iter.Seq[*watch.Entry] {
	if s.cfg.DecodeAhead == nil {
		return entries
	}
	return func(yield func(*watch.Entry) bool) {
		var page []*watch.Entry
		size := 0
		give := func() bool {
			s.decodeAhead(ctx, page)
			for _, e := range page {
				if !yield(e) {
					return false
				}
			}
			page, size = page[:0], 0
			return true
		}
		for e := range entries {
			page, size = append(page, e), size+len(e.Value)
			if (len(page) == aheadRecords || size >= aheadBytes) && !give() {
				return
			}
		}
		give()
	}
}

// decodePicked decodes ahead what a page with a limit will give.
func (s *Store) decodePicked(ctx context.Context, picked []selected) {
	if s.cfg.DecodeAhead == nil {
		return
	}
	entries := make([]*watch.Entry, 0, len(picked))
	for _, p := range picked {
		if p.err == nil {
			entries = append(entries, p.entry)
		}
	}
	s.decodeAhead(ctx, entries)
}

// decodeEvents decodes ahead what a watch with a predicate looks at, or gives.
func (c *cursor) decodeEvents(ctx context.Context, events []watch.Event) {
	if c.s.cfg.DecodeAhead == nil {
		return
	}
	all := everything(&c.opts.Predicate)
	var entries []*watch.Entry
	for _, ev := range events {
		if ev.New != nil {
			entries = append(entries, ev.New)
		}
		if ev.Old != nil && (ev.New == nil || !all) {
			entries = append(entries, ev.Old)
		}
	}
	c.s.decodeAhead(ctx, entries)
}
