package storage

import (
	"context"
	"iter"

	"k8s.io/apiserver/pkg/storage"

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
func (s *Store) decodeAhead(ctx context.Context, p *storage.SelectionPredicate, f *Format, entries []*watch.Entry) {
	if s.cfg.DecodeAhead == nil {
		return
	}
	var values [][]byte
	size := 0
	for _, e := range entries {
		isSelected := selectsEverything(p) || s.knownAttributes(e) != nil
		if f != nil && isSelected && s.inMemory(e, f) != nil {
			continue // it is not decoded
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

// withDecodeAhead yields the same entries. Before it yields the first entry of a page, it decodes
// the page ahead.
func (s *Store) withDecodeAhead(ctx context.Context, l *listRequest, entries iter.Seq[*watch.Entry]) iter.Seq[*watch.Entry] {
	if s.cfg.DecodeAhead == nil {
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
			page, size = append(page, e), size+len(e.Value)
			if (len(page) == aheadRecords || size >= aheadBytes) && !yieldPage() {
				return
			}
		}
		yieldPage()
	}
}

// decodePageAhead decodes the entries of a page with a limit ahead.
func (s *Store) decodePageAhead(ctx context.Context, l *listRequest, picked []selected) {
	if s.cfg.DecodeAhead == nil {
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

// decodeEventsAhead decodes ahead the states that a watch compares with its predicate or
// sends.
func (c *cursor) decodeEventsAhead(ctx context.Context, events []watch.Event) {
	if c.s.cfg.DecodeAhead == nil {
		return
	}
	all := selectsEverything(&c.opts.Predicate)
	var entries []*watch.Entry
	for _, ev := range events {
		if ev.New != nil {
			entries = append(entries, ev.New)
		}
		if ev.Old != nil && (ev.New == nil || !all) {
			entries = append(entries, ev.Old)
		}
	}
	c.s.decodeAhead(ctx, &c.opts.Predicate, c.format, entries)
}
