package storage

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

	"byre/apiserver/storage/encoding"
	"byre/sqlstore"
	"byre/watch"
)

// lister answers lists from memory or from the database.
type lister struct {
	records *records
	*selector
	// uncached is Config.Uncached.
	uncached bool
}

// page is the result of a list. Its entries are those of the snapshot or of the
// database. A representation or an object is made of each entry while it is sent.
type page struct {
	revision      int64
	continueToken string
	remaining     *int64
	// items yields the entries that the predicate selects, in key order. An error with
	// an entry is an error of this entry only; an error without an entry ends the
	// iteration.
	items iter.Seq2[*watch.Entry, error]
	// expired is the error of an item that is history which can't be decrypted.
	expired error
	// readsOnce is true if items reads the database, and can therefore be iterated only
	// once.
	readsOnce bool
	// isEncrypted is true if items may have encrypted values, each of which may be one that can't be decrypted.
	isEncrypted bool
}

// listRequest is a list request with its options decoded.
type listRequest struct {
	keyRange
	opts storage.ListOptions
	// exact is the revision to read at. 0 means the feed's latest revision, after the
	// feed has become as recent as the request demands.
	exact int64
	// continueKey is the key in the continue token. The page begins after the position
	// after. Where from is set, entries before from are left out too.
	continueKey string
	after       *sqlstore.Position
	from        *sqlstore.Position
	limit       int64 // 0: none, as of a request that is not recursive
	// format is the Format of the answer; nil for a list of objects.
	format *encoding.Format
	// issued is the time at which the first page was read, and left the number of objects
	// from the start of this page on. Both are from the continue token, and zero for a
	// first page and for a token without them.
	issued time.Time
	left   int64
}

// parseListRequest decodes the options as upstream's store and watch cache do
// (storage.ValidateListOptions, cacher/delegator).
func (s *lister) parseListRequest(key string, opts storage.ListOptions) (*listRequest, error) {
	keys, err := s.records.keyRange(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	l := &listRequest{keyRange: keys, opts: opts}
	if l.exact, l.continueKey, err = storage.ValidateListOptions(keys.path, versioner, opts); err != nil {
		return nil, err
	}
	// Upstream's watch cache ignores a limit with resourceVersion "0". Resources without one are read from etcd, which
	// honours it.
	isWhole := opts.ResourceVersion == "0" && opts.Predicate.Continue == "" && !s.uncached
	if opts.Recursive && opts.Predicate.Limit > 0 && !isWhole {
		l.limit = opts.Predicate.Limit
	}
	if l.continueKey != "" {
		if err := l.decodeContinue(); err != nil {
			return nil, err
		}
		l.issued, l.left = tokenMembers(opts.Predicate.Continue)
	}
	return l, nil
}

// decodeContinue turns a continue token's key into positions.
func (l *listRequest) decodeContinue() error {
	rest := strings.TrimPrefix(l.continueKey, l.path)
	name, exclusive := strings.CutSuffix(rest, "\x00")
	if !utf8.ValidString(name) || strings.Contains(name, "\x00") {
		return apierrors.NewBadRequest("invalid continue token")
	}
	// ListPredicate of the generic registry lists only the first page in a namespace that the field selector requires,
	// and reads from bytes list each page there. So a token may be relative to the namespace or to the resource.
	at := sqlstore.Position{Namespace: l.namespace, Name: strings.TrimPrefix(name, l.namespace+"/")}
	if l.namespace == "" {
		at.Namespace, at.Name = splitName(name)
		if namespace, ok := l.opts.Predicate.Field.RequiresExactMatch("metadata.namespace"); ok && at.Namespace == "" {
			at.Namespace = namespace
		}
	}
	if !exclusive {
		// Upstream's tokens are exclusive, so upstream did not make this one. The
		// object that the token names belongs to the page: the read begins before that
		// object, and isOutside drops the entries in between.
		l.from = &sqlstore.Position{Namespace: at.Namespace, Name: at.Name}
		_, size := utf8.DecodeLastRuneInString(at.Name)
		at.Name = at.Name[:len(at.Name)-size]
	}
	l.after = &at
	return nil
}

// isOutside reports whether an entry does not belong to the page, regardless of the
// selectors.
func (l *listRequest) isOutside(e *watch.Entry) bool {
	if !l.recursive {
		return e.Namespace != l.namespace || e.Name != l.name
	}
	return l.from != nil && (e.Namespace < l.from.Namespace || e.Namespace == l.from.Namespace && e.Name < l.from.Name)
}

// page answers a list in a Format; nil means that the caller decodes the entries.
func (s *lister) page(ctx context.Context, key string, opts storage.ListOptions, f *encoding.Format) (*page, error) {
	l, err := s.parseListRequest(key, opts)
	if err != nil {
		return nil, err
	}
	l.format = f
	if err := s.waitUntilFresh(ctx, l); err != nil {
		return nil, err
	}
	if s.records.feed.Revision() == 0 {
		if err := s.records.ensureFirstRevision(ctx); err != nil {
			return nil, err
		}
	}
	p, err := s.readPage(ctx, l)
	if err == nil {
		p.expired = l.expired()
		p.isEncrypted = p.isEncrypted || !s.serializer.Transformer.IsPlain()
	}
	return p, err
}

// readPage reads a page from memory, or else from the database.
func (s *lister) readPage(ctx context.Context, l *listRequest) (*page, error) {
	if l.exact > 0 {
		if snapshot, ok := s.records.feed.SnapshotAt(s.records.resource(), l.exact); ok {
			return s.pageFromSnapshot(ctx, l, snapshot)
		}
		return s.pageFromDatabase(ctx, l)
	}
	if !s.records.feed.IsLoaded(s.records.resource()) && (!l.recursive || l.limit > 0) {
		return s.pageFromDatabase(ctx, l)
	}
	snapshot, err := s.snapshot(ctx, l)
	if err != nil {
		return nil, s.records.apiError(err, l.path)
	}
	return s.pageFromSnapshot(ctx, l, snapshot)
}

// waitUntilFresh waits until the feed has the revision that the request demands.
func (s *lister) waitUntilFresh(ctx context.Context, l *listRequest) error {
	switch {
	case l.exact > 0:
		if err := s.records.waitFor(ctx, l.exact); err != nil {
			return err
		}
		state := s.records.currentState(ctx)
		if l.opts.Predicate.Continue != "" && tokenExpired(l.issued, state.Time) {
			return l.expired()
		}
		return s.pagerError(s.records.checkHistory(ctx, l.exact, state), l)
	case l.opts.ResourceVersion == "":
		_, err := s.records.feed.Latest(ctx)
		return s.records.apiError(err, l.path)
	}
	asked, err := parseVersion(l.opts.ResourceVersion)
	if err != nil {
		return err
	}
	return s.records.waitFor(ctx, asked)
}

func (s *lister) snapshot(ctx context.Context, l *listRequest) (watch.Snapshot, error) {
	if n := s.matchValue(&l.opts.Predicate); n != nil && l.recursive {
		return s.records.feed.SnapshotIndexed(ctx, s.records.resource(), n.Index)
	}
	return s.records.feed.Snapshot(ctx, s.records.resource())
}

// selected is one entry of a page with a limit, with the error of comparing it with the
// selectors.
type selected struct {
	entry *watch.Entry
	err   error
}

// pageFromSnapshot answers from memory. Without a limit the entries are selected while
// they are iterated, and the page holds none of them.
func (s *lister) pageFromSnapshot(ctx context.Context, l *listRequest, snapshot watch.Snapshot) (*page, error) {
	p := &page{revision: snapshot.Revision()}
	candidates := s.candidates(l, snapshot)
	if l.limit == 0 {
		if l.format != nil { // values may be encrypted though nothing is any more, by a configuration that lacks their key
			for e := range candidates {
				if p.isEncrypted = encoding.IsWrapped(e.Value()); p.isEncrypted {
					break
				}
			}
		}
		p.items = s.selectEntries(ctx, l, candidates)
		return p, nil
	}
	if !selectsEverything(&l.opts.Predicate) {
		candidates = s.withDecodeAhead(ctx, l, candidates)
	}
	total := l.left
	if l.after == nil && l.namespace == "" {
		total = int64(snapshot.Len())
	}
	counts := total == 0 && selectsEverything(&l.opts.Predicate)
	var picked []selected
	var last *watch.Entry
	seen, more := int64(0), false
	for e := range candidates {
		if l.isOutside(e) {
			continue
		}
		seen++
		if int64(len(picked)) == l.limit {
			if more = true; !counts {
				break
			}
			continue
		}
		if ok, err := s.matches(ctx, &l.opts.Predicate, e); ok || err != nil {
			picked = append(picked, selected{e, err})
		}
		last = e
		if seen%contextInterval == 0 && ctx.Err() != nil {
			return nil, timedOut(l.path)
		}
	}
	if counts {
		total = seen
	}
	if more && l.isFirstPage() {
		s.records.feed.Keep(snapshot, tokenLifetime)
	}
	return p, s.finishPage(ctx, p, l, picked, last, total, more)
}

// isFirstPage reports whether the page begins a list at a revision.
func (l *listRequest) isFirstPage() bool { return l.exact == 0 || l.continueKey == "" }

// finishPage sets the items, the continue token and remainingItemCount of a page with a
// limit. total is the number of objects from the start of the page; it is not used where
// more is false, or where there is a selector.
func (s *lister) finishPage(ctx context.Context, p *page, l *listRequest, picked []selected, last *watch.Entry, total int64, more bool) error {
	p.items = func(yield func(*watch.Entry, error) bool) {
		s.decodePageAhead(ctx, l, picked)
		for _, item := range picked {
			if !yield(item.entry, item.err) {
				return
			}
		}
	}
	p.isEncrypted = slices.ContainsFunc(picked, func(item selected) bool { return encoding.IsWrapped(item.entry.Value()) })
	key := l.path
	if last != nil {
		key += joinName(last.Namespace, last.Name)
		if l.namespace != "" {
			key = l.path + last.Name
		}
	}
	var err error
	p.continueToken, p.remaining, err = storage.PrepareContinueToken(key, l.path, p.revision, total, more, l.opts)
	if err != nil || p.continueToken == "" {
		return err
	}
	left := int64(0)
	if p.remaining != nil {
		// A total that is not exact, because it is from a changed token or the feed's
		// counters, is corrected: there are more.
		left = max(*p.remaining, 1)
		p.remaining = &left
	}
	issued := l.issued
	if l.isFirstPage() {
		issued = s.records.currentState(ctx).Time
	}
	p.continueToken, err = extendToken(p.continueToken, issued, left)
	return err
}

// expired is the error where the history that the list needs is not there any more.
func (l *listRequest) expired() error {
	return expired(l.continueKey, l.path, l.opts.Predicate.Continue != "")
}

// pagerError converts an error of reading history or the database to the error of the
// list.
func (s *lister) pagerError(err error, l *listRequest) error {
	switch {
	case errors.Is(err, sqlstore.ErrCompacted):
		return l.expired()
	case errors.Is(err, sqlstore.ErrFuture):
		return s.records.tooLarge(l.exact)
	}
	return s.records.apiError(err, l.path)
}
