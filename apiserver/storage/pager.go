package storage

import (
	"context"
	"iter"
	"slices"

	"byre/sqlstore"
	"byre/watch"
)

const (
	// pageRecords is how many records one read returns where the request sets no limit.
	// maxPageRecords is the most that one read returns where selectors select few.
	pageRecords    = 500
	maxPageRecords = 10_000
)

// pager reads a range of the database page by page, all pages at one revision.
type pager struct {
	s     *lister
	query sqlstore.Query
	// entries is the page that was read last.
	entries []*watch.Entry
	// seen is how many records were read in all pages.
	seen int64
	// more is true if there are records after entries; remaining is their number then.
	more      bool
	remaining int64
}

// read reads the next page of about size records; 0 means pageRecords.
func (p *pager) read(ctx context.Context, size int64) error {
	if size <= 0 {
		size = pageRecords
	}
	p.query.Limit = int(min(size, maxPageRecords))
	p.entries = nil
	listed, err := p.s.records.list(ctx, p.query, func(r sqlstore.Record) error {
		p.entries = append(p.entries, watch.NewEntry(r))
		return nil
	})
	if err != nil {
		return err
	}
	// The later pages are read at the revision of the first.
	p.query.At = listed.Revision
	p.seen += int64(len(p.entries))
	p.more, p.remaining = listed.More && len(p.entries) > 0, listed.Remaining
	if n := len(p.entries); n > 0 {
		last := p.entries[n-1]
		p.query.After = &sqlstore.Position{Namespace: last.Namespace, Name: last.Name}
	}
	return nil
}

// pageFromDatabase answers from the database: lists at revisions that are not in
// memory, and pages of resources that the feed has not loaded.
func (s *lister) pageFromDatabase(ctx context.Context, l *listRequest) (*page, error) {
	pager := &pager{s: s, query: sqlstore.Query{
		Range: sqlstore.Range{
			Group:     s.records.groupResource.Group,
			Resource:  s.records.groupResource.Resource,
			Owner:     s.records.owner,
			Namespace: l.namespace,
			Name:      l.name,
			After:     l.after,
		},
		At: l.exact,
	}}
	total := s.countedBefore(l)
	pager.query.Count = total == 0 && l.limit > 0 && selectsEverything(&l.opts.Predicate)
	if err := pager.read(ctx, l.limit); err != nil {
		return nil, s.pagerError(err, l)
	}
	p := &page{revision: pager.query.At}
	if l.limit == 0 {
		p.items, p.readsOnce = s.itemsFromDatabase(ctx, l, pager), true
		return p, nil
	}
	var picked []selected
	var last *watch.Entry
	seen := int64(0)
	for size := l.limit; ; {
		if !selectsEverything(&l.opts.Predicate) {
			s.decodeAhead(ctx, &l.opts.Predicate, l.format, pager.entries)
		}
		for _, e := range pager.entries {
			if int64(len(picked)) == l.limit {
				break
			}
			seen++
			last = e
			if l.isOutside(e) {
				continue
			}
			if ok, err := s.matches(ctx, &l.opts.Predicate, e); ok || err != nil {
				picked = append(picked, selected{e, err})
			}
		}
		if int64(len(picked)) == l.limit || !pager.more {
			break
		}
		// The selectors select few of the records: double the size of the next read, as
		// upstream does.
		size = min(2*size, maxPageRecords)
		if err := pager.read(ctx, size); err != nil {
			return nil, s.pagerError(err, l)
		}
	}
	if pager.query.Count {
		total = pager.seen + pager.remaining
	}
	more := pager.more || seen < pager.seen
	return p, s.finishPage(ctx, p, l, picked, last, total, more)
}

// countedBefore returns the number of objects from the start of a page on, if it is known
// without a query of the database: from the continue token, or, for the first page of a whole
// resource, from the feed's counters. It is 0 otherwise.
func (s *lister) countedBefore(l *listRequest) int64 {
	if l.after == nil && l.namespace == "" && l.exact == 0 {
		usage, _ := s.records.feed.Usage(s.records.resource())
		return usage.Objects
	}
	return l.left
}

// itemsFromDatabase yields the entries that the predicate selects. It reads the next
// page of records after the previous one has been iterated.
func (s *lister) itemsFromDatabase(ctx context.Context, l *listRequest, p *pager) iter.Seq2[*watch.Entry, error] {
	return func(yield func(*watch.Entry, error) bool) {
		for {
			for e, err := range s.selectEntries(ctx, l, slices.Values(p.entries)) {
				if !yield(e, err) {
					return
				}
			}
			if !p.more {
				return
			}
			if err := p.read(ctx, 0); err != nil {
				yield(nil, s.pagerError(err, l))
				return
			}
		}
	}
}
