package objectstore

import (
	"context"

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
	s     *Store
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
	listed, err := p.s.listRecords(ctx, p.query, func(r sqlstore.Record) error {
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
