package objectstore

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
	"byre/watch"
)

// page is the answer to a list, before anybody has looked at its items.
type page struct {
	revision  int64
	cont      string
	remaining *int64
	// items gives what the predicate selects, in key order.
	items iter.Seq2[*watch.Entry, error]
	// once is set where items can be iterated once only.
	once bool
}

// listing is a list request, understood.
type listing struct {
	span
	opts storage.ListOptions
	// exact is the one revision to read at; 0: as of now or of freshness.
	exact int64
	// start is where a continue token goes on, as its key; after is that as a
	// position that is left out, and from a name that is the first to take.
	start string
	after *sqlstore.Position
	from  *sqlstore.Position
	limit int64
	// issued is when the first page was read, from the continue token; zero on
	// a first page, and where the token does not say.
	issued time.Time
}

// listing understands the options as upstream's store and watch cache do
// (storage.ValidateListOptions, cacher/delegator).
func (s *Store) listing(key string, opts storage.ListOptions) (*listing, error) {
	sp, err := s.span(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	l := &listing{span: sp, opts: opts}
	if l.exact, l.start, err = storage.ValidateListOptions(sp.path, s.versioner, opts); err != nil {
		return nil, err
	}
	// (The watch cache ignores a limit where any state will do; etcd's store
	// honours it, which costs nothing here either.)
	if opts.Recursive && opts.Predicate.Limit > 0 {
		l.limit = opts.Predicate.Limit
	}
	if l.start != "" {
		if err := l.decodeContinue(); err != nil {
			return nil, err
		}
		l.issued = tokenIssued(opts.Predicate.Continue)
	}
	return l, nil
}

// decodeContinue turns a continue token's key into positions.
func (l *listing) decodeContinue() error {
	rest := strings.TrimPrefix(l.start, l.path)
	name, exclusive := strings.CutSuffix(rest, "\x00")
	if !utf8.ValidString(name) || strings.Contains(name, "\x00") {
		return apierrors.NewBadRequest("invalid continue token")
	}
	at := sqlstore.Position{Namespace: l.namespace, Name: name}
	if l.namespace == "" {
		at.Namespace, at.Name = splitName(name)
	}
	if !exclusive {
		// Only a token that upstream did not make: the named object itself
		// belongs to the page, so read from a little before it.
		l.from = &sqlstore.Position{Namespace: at.Namespace, Name: at.Name}
		_, size := utf8.DecodeLastRuneInString(at.Name)
		at.Name = at.Name[:len(at.Name)-size]
	}
	l.after = &at
	return nil
}

// outside says whether an entry that was found does not belong to the page.
func (l *listing) outside(e *watch.Entry) bool {
	if !l.recursive {
		return e.Namespace != l.namespace || e.Name != l.name
	}
	return l.from != nil && (e.Namespace < l.from.Namespace || e.Namespace == l.from.Namespace && e.Name < l.from.Name)
}

// page answers a list.
func (s *Store) page(ctx context.Context, key string, opts storage.ListOptions) (*page, error) {
	l, err := s.listing(key, opts)
	if err != nil {
		return nil, err
	}
	if err := s.freshen(ctx, l); err != nil {
		return nil, err
	}
	if s.cfg.Feed.Revision() == 0 {
		if err := s.ensureFirstRevision(ctx); err != nil {
			return nil, err
		}
	}
	if _, _, loaded := s.cfg.Feed.Lookup(s.at("", "").Key); loaded || l.exact == 0 && l.recursive && l.limit == 0 {
		snapshot, err := s.snapshot(ctx, l)
		if err != nil {
			return nil, s.apiError(err, l.path)
		}
		if l.exact == 0 || snapshot.Since() <= l.exact && l.exact <= snapshot.Revision() {
			return s.memoryPage(ctx, l, snapshot)
		}
	}
	return s.storedPage(ctx, l)
}

// freshen waits until the feed can answer what l asks for.
func (s *Store) freshen(ctx context.Context, l *listing) error {
	switch {
	case l.exact > 0:
		if err := s.waitFor(ctx, l.exact); err != nil {
			return err
		}
		return s.pagerError(s.checkHistory(ctx, l), l)
	case l.opts.ResourceVersion == "":
		_, err := s.cfg.Feed.Latest(ctx)
		return s.apiError(err, l.path)
	}
	asked, err := s.parseVersion(l.opts.ResourceVersion)
	if err != nil {
		return err
	}
	return s.waitFor(ctx, asked)
}

// checkHistory refuses a list at a revision that is compacted, or by a continue
// token that has expired.
func (s *Store) checkHistory(ctx context.Context, l *listing) error {
	state := s.state(ctx)
	if l.exact < state.Compacted || l.opts.Predicate.Continue != "" && tokenExpired(l.issued, state.Time) {
		return sqlstore.ErrCompacted
	}
	return nil
}

// state is where the database stands. What is in memory might answer for a
// revision that is compacted there, but every replica is to give the same
// answer. While the database is away, what the feed knows is good enough; Time
// is zero then.
func (s *Store) state(ctx context.Context) sqlstore.State {
	state, err := s.cfg.Feed.State(ctx)
	if err != nil {
		return sqlstore.State{Revision: s.cfg.Feed.Revision(), Compacted: s.cfg.Feed.Compacted()}
	}
	return state
}

func (s *Store) snapshot(ctx context.Context, l *listing) (watch.Snapshot, error) {
	if n := s.narrowing(&l.opts.Predicate); n != nil && l.recursive {
		return s.cfg.Feed.SnapshotIndexed(ctx, s.resource(), n.Index)
	}
	return s.cfg.Feed.Snapshot(ctx, s.resource())
}

// narrowing returns the value that a predicate demands of an indexed field, or
// nil. The index's name is the field's.
func (s *Store) narrowing(p *storage.SelectionPredicate) *watch.Narrowing {
	if p.Field == nil {
		return nil
	}
	for _, index := range s.indexes {
		if value, ok := p.Field.RequiresExactMatch(index.Name); ok {
			return &watch.Narrowing{Index: index, Value: value}
		}
	}
	return nil
}

// candidates are the entries of a snapshot that a list may select from.
func (s *Store) candidates(l *listing, snapshot watch.Snapshot) iter.Seq[*watch.Entry] {
	if !l.recursive {
		return func(yield func(*watch.Entry) bool) {
			if e := snapshot.Get(l.namespace, l.name); e != nil {
				yield(e)
			}
		}
	}
	n := s.narrowing(&l.opts.Predicate)
	if n == nil {
		return snapshot.All(l.namespace, l.after)
	}
	return snapshot.Indexed(*n, l.namespace, l.after)
}

// selection is one entry that a list gives, or why it can't.
type selection struct {
	entry *watch.Entry
	err   error
}

// contextInterval is after how many entries a walk looks whether its request
// has ended.
const contextInterval = 256

// selected walks candidates and gives what the predicate selects.
func (s *Store) selected(ctx context.Context, l *listing, candidates iter.Seq[*watch.Entry]) iter.Seq2[*watch.Entry, error] {
	return func(yield func(*watch.Entry, error) bool) {
		n := 0
		for e := range s.ahead(ctx, candidates) {
			if n++; n%contextInterval == 0 && ctx.Err() != nil {
				yield(nil, timedOut(l.path))
				return
			}
			if l.outside(e) {
				continue
			}
			if ok, err := s.matches(ctx, &l.opts.Predicate, e); (ok || err != nil) && !yield(e, err) {
				return
			}
		}
	}
}

func timedOut(path string) error {
	return storage.NewTimeoutError(path, "request did not complete within requested timeout")
}

// memoryPage answers from a snapshot. Without a limit it does not hold the
// items at all: they are selected while they are iterated.
func (s *Store) memoryPage(ctx context.Context, l *listing, snapshot watch.Snapshot) (*page, error) {
	p := &page{revision: snapshot.Revision()}
	if l.exact > 0 {
		p.revision = l.exact
	}
	candidates := s.candidates(l, snapshot)
	if l.limit == 0 || !l.recursive {
		p.items = s.selected(ctx, l, candidates)
		return p, nil
	}
	if !everything(&l.opts.Predicate) {
		candidates = s.ahead(ctx, candidates)
	}
	var picked []selection
	var last *watch.Entry
	total, more := int64(0), false
	for e := range candidates {
		if l.outside(e) {
			continue
		}
		total++
		if int64(len(picked)) == l.limit {
			more = true
			if !everything(&l.opts.Predicate) {
				break // how many remain is not said
			}
			continue
		}
		if ok, err := s.matches(ctx, &l.opts.Predicate, e); ok || err != nil {
			picked = append(picked, selection{e, err})
		}
		last = e
		if total%contextInterval == 0 && ctx.Err() != nil {
			return nil, timedOut(l.path)
		}
	}
	return p, s.finish(ctx, p, l, picked, last, total, more)
}

// finish completes a page with a limit: total is the number of candidates from
// the page's start, or at least one more than were looked at.
func (s *Store) finish(ctx context.Context, p *page, l *listing, picked []selection, last *watch.Entry, total int64, more bool) error {
	p.items = func(yield func(*watch.Entry, error) bool) {
		s.decodePicked(ctx, picked)
		for _, item := range picked {
			if !yield(item.entry, item.err) {
				return
			}
		}
	}
	key := l.path
	if last != nil {
		key += joinName(last.Namespace, last.Name)
		if l.namespace != "" {
			key = l.path + last.Name
		}
	}
	var err error
	p.cont, p.remaining, err = storage.PrepareContinueToken(key, l.path, p.revision, total, more, l.opts)
	if err != nil || p.cont == "" {
		return err
	}
	issued := l.issued
	if l.exact == 0 || l.opts.Predicate.Continue == "" {
		issued = s.state(ctx).Time
	}
	p.cont, err = stampToken(p.cont, issued)
	return err
}

// storedPage answers from the database: for old revisions, and for pages of
// resources that nobody reads whole.
func (s *Store) storedPage(ctx context.Context, l *listing) (*page, error) {
	pager := &pager{s: s, query: sqlstore.Query{
		Range: sqlstore.Range{
			Group:     s.cfg.GroupResource.Group,
			Resource:  s.cfg.GroupResource.Resource,
			Owner:     s.cfg.Owner,
			Namespace: l.namespace,
			Name:      l.name,
			After:     l.after,
		},
		At: l.exact,
	}}
	if err := pager.read(ctx, l.limit); err != nil {
		return nil, s.pagerError(err, l)
	}
	p := &page{revision: pager.query.At}
	if l.limit == 0 || !l.recursive {
		p.items, p.once = s.storedItems(ctx, l, pager), true
		return p, nil
	}
	var picked []selection
	var last *watch.Entry
	seen := int64(0)
	for size := l.limit; ; {
		if !everything(&l.opts.Predicate) {
			s.decodeAhead(ctx, pager.entries)
		}
		for _, e := range pager.entries {
			if int64(len(picked)) == l.limit {
				break
			}
			seen++
			last = e
			if l.outside(e) {
				continue
			}
			if ok, err := s.matches(ctx, &l.opts.Predicate, e); ok || err != nil {
				picked = append(picked, selection{e, err})
			}
		}
		if int64(len(picked)) == l.limit || !pager.more {
			break
		}
		// Selectors let little through: read more at a time, as upstream does.
		size = min(2*size, maxPageRecords)
		if err := pager.read(ctx, size); err != nil {
			return nil, s.pagerError(err, l)
		}
	}
	more := pager.more || seen < pager.seen
	return p, s.finish(ctx, p, l, picked, last, pager.seen+pager.remaining, more)
}

// storedItems gives what the predicate selects, reading on as it is iterated.
func (s *Store) storedItems(ctx context.Context, l *listing, p *pager) iter.Seq2[*watch.Entry, error] {
	return func(yield func(*watch.Entry, error) bool) {
		for {
			for e, err := range s.selected(ctx, l, slices.Values(p.entries)) {
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

func (s *Store) pagerError(err error, l *listing) error {
	switch {
	case errors.Is(err, sqlstore.ErrCompacted):
		return expired(l.start, l.path, l.opts.Predicate.Continue != "")
	case errors.Is(err, sqlstore.ErrFuture):
		return s.tooLarge(l.exact)
	}
	return s.apiError(err, l.path)
}
