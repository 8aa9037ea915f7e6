package storage

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"byre/apiserver/storage/encoding"
	"byre/sqlstore"
	"byre/watch"
)

// EncodedList is a list in a Format. Its items are read while they are iterated.
type EncodedList struct {
	// ResourceVersion, Continue and RemainingItemCount are the list's metadata. They
	// are known before the first item is read.
	ResourceVersion    string
	Continue           string
	RemainingItemCount *int64
	// Items yields each object once, in key order. It ends with the first error, which
	// may come in the middle. An object is valid until the next one; see KeepItems.
	Items iter.Seq2[encoding.Encoded, error]

	s      *lister
	page   *page
	format *encoding.Format
	// buffer has the item that Items has yielded last, if it is held compressed; nil: each has memory of its own.
	buffer *[]byte
}

// KeepItems has Items yield objects that stay valid. The caller calls it before it iterates.
func (l *EncodedList) KeepItems() { l.buffer = nil }

// MessagesBytes returns how many bytes the items take as the elements of a list in a
// Format of protobuf. Each element consists of the tag of its field, which is one byte,
// its length and the message. The caller may iterate Items afterwards. MessagesBytes keeps
// items in memory that are read from the database, because they can be read only once, and
// items that a webhook may convert otherwise the next time.
func (l *EncodedList) MessagesBytes(ctx context.Context) (total int, err error) {
	add := func(n int) { total += 1 + protowire.SizeBytes(n) }
	if l.page.readsOnce || l.s.serializer.DecodedAge > 0 {
		items, err := l.readItems()
		for _, item := range items {
			add(len(item.Body()))
		}
		return total, err
	}
	for size := range l.s.sizes(ctx, l.format).all(l.page.items) {
		if size.err != nil {
			return 0, l.s.itemError(ctx, l.page, size.err, size.entry)
		}
		add(size.value)
	}
	return total, nil
}

// readItems reads all items and keeps them in memory for Items.
func (l *EncodedList) readItems() (items []encoding.Encoded, err error) {
	l.KeepItems()
	for item, err := range l.Items {
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	l.Items = func(yield func(encoding.Encoded, error) bool) {
		for _, item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
	return items, nil
}

// sizes finds the lengths of the items' messages.
func (s *lister) sizes(ctx context.Context, f *encoding.Format) parallel[int] {
	return parallel[int]{
		find: func(e *watch.Entry) (int, bool) {
			n := s.serializer.Size(e, f)
			return n, n > 0
		},
		make: func(e *watch.Entry) (int, error) {
			r, err := s.serializer.RepresentItem(ctx, e, f)
			if err != nil {
				return 0, err
			}
			return len(r.Body), nil
		},
		sequential: s.prepare != nil,
	}
}

// representations makes the representations of the items of a list in a Format. buffer is that of
// watch.Representations.Get.
func (s *lister) representations(
	ctx context.Context, f *encoding.Format, buffer *[]byte,
) parallel[*watch.Representation] {
	return parallel[*watch.Representation]{
		find: func(e *watch.Entry) (*watch.Representation, bool) {
			r := s.serializer.InMemory(e, f, buffer)
			return r, r != nil
		},
		make: func(e *watch.Entry) (*watch.Representation, error) {
			return s.serializer.RepresentItem(ctx, e, f)
		},
		sequential: s.prepare != nil,
	}
}

// itemError is the error for an entry of a page; where e is nil, the page itself failed.
func (s *lister) itemError(ctx context.Context, p *page, err error, e *watch.Entry) error {
	if e != nil && s.records.isLostHistory(ctx, err, e) {
		return p.expired
	}
	return s.serializer.EntryError(err, e)
}

// ListEncoded is GetList in a Format. It returns errors of resourceVersion and
// continue. An item that can't be read ends Items with the error of GetList, which names all such items. Where
// encrypted values have to be read, or a webhook asked (Config.DecodeAhead), any item may fail: all are read first,
// and the caller can still answer with the error.
func (s *Store) ListEncoded(
	ctx context.Context, key string, opts storage.ListOptions, f *encoding.Format,
) (*EncodedList, error) {
	p, err := s.lister.page(ctx, key, opts, f)
	if err == nil {
		err = s.checkReplaced(ctx, p.revision) // before the first item is sent
	}
	if err != nil {
		return nil, err
	}
	list := &EncodedList{
		ResourceVersion:    strconv.FormatInt(p.revision, 10),
		Continue:           p.continueToken,
		RemainingItemCount: p.remaining,

		s: s.lister, page: p, format: f, buffer: new([]byte),
	}
	list.Items = func(yield func(encoding.Encoded, error) bool) {
		var corrupt corruptObjects
		for item := range s.lister.representations(ctx, f, list.buffer).all(p.items) {
			switch {
			case item.err != nil && (item.entry == nil || s.records.isLostHistory(ctx, item.err, item.entry)):
				yield(encoding.Encoded{}, s.lister.itemError(ctx, p, item.err, item.entry))
				return
			case item.err != nil:
				if !corrupt.add(item.err, s.records.pathOf(item.entry.Key)) {
					yield(encoding.Encoded{}, corrupt.err(s.cfg.GroupResource))
					return
				}
				continue
			case len(corrupt.causes) > 0:
				continue // the rest is read for its errors alone
			}
			if !yield(s.serializer.Encoded(f, item.value, item.entry, item.entry.Revision), nil) {
				return
			}
		}
		if err := corrupt.err(s.cfg.GroupResource); err != nil {
			yield(encoding.Encoded{}, err)
		}
	}
	if s.cfg.DecodeAhead != nil || p.isEncrypted {
		if _, err := list.readItems(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Encode returns an entry of the feed, of this resource, in a Format.
func (s *Store) Encode(ctx context.Context, e *watch.Entry, f *encoding.Format) (encoding.Encoded, error) {
	r, err := s.serializer.RepresentItem(ctx, e, f)
	if err != nil {
		return encoding.Encoded{}, s.serializer.EntryError(err, e)
	}
	return s.serializer.Encoded(f, r, e, e.Revision), nil
}

// Row is an object as it is stored, decrypted.
type Row struct {
	Namespace, Name string
	Revision        int64
	JSON            []byte
}

// ListRows lists objects without decoding them, also those that can't be decoded. It returns the
// continue token of the next page.
func (s *Store) ListRows(ctx context.Context, opts storage.ListOptions) (rows []Row, next string, err error) {
	p, err := s.lister.page(ctx, s.Prefix(), opts, nil)
	if err != nil {
		return nil, "", err
	}
	for entry, err := range p.items {
		if err != nil {
			return nil, "", s.serializer.EntryError(err, entry)
		}
		data, _, err := s.serializer.Open(ctx, entry)
		if err != nil {
			return nil, "", s.serializer.EntryError(err, entry)
		}
		rows = append(rows, Row{entry.Namespace, entry.Name, entry.Revision, data})
	}
	return rows, p.continueToken, nil
}

// GetList implements storage.Interface.
func (s *Store) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	itemsPtr, err := meta.GetItemsPtr(listObj)
	if err != nil {
		return err
	}
	items, err := conversion.EnforcePtr(itemsPtr)
	if err != nil || items.Kind() != reflect.Slice {
		return fmt.Errorf("need ptr to slice: %w", err)
	}
	p, err := s.lister.page(ctx, key, opts, nil)
	if err != nil {
		return err
	}
	var corrupt corruptObjects
	for e, err := range p.items {
		var obj runtime.Object
		if err == nil {
			obj, err = s.serializer.Object(ctx, e)
		}
		switch {
		case err != nil && (e == nil || s.records.isLostHistory(ctx, err, e)):
			return s.lister.itemError(ctx, p, err, e)
		case err != nil:
			if !corrupt.add(err, s.records.pathOf(e.Key)) {
				return corrupt.err(s.cfg.GroupResource)
			}
		default:
			items.Set(reflect.Append(items, reflect.ValueOf(obj).Elem()))
		}
	}
	if err := corrupt.err(s.cfg.GroupResource); err != nil {
		return err
	}
	if items.IsNil() {
		// Clients expect an empty list as items: [], not null.
		items.Set(reflect.MakeSlice(items.Type(), 0, 0))
	}
	if err := versioner.UpdateList(listObj, uint64(p.revision), p.continueToken, p.remaining); err != nil {
		return err
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch) {
		opts.Predicate.SetShardInfoOnList(listObj)
	}
	return nil
}

// GetCurrentResourceVersion implements storage.Interface.
func (s *Store) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	revision, err := s.cfg.Feed.Latest(ctx)
	if err == nil && revision == 0 {
		if err := s.records.ensureFirstRevision(ctx); err != nil {
			return 0, err
		}
		revision, err = s.cfg.Feed.Latest(ctx)
	}
	if err != nil {
		return 0, s.records.apiError(err, s.records.prefix)
	}
	return uint64(revision), nil
}

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
				if p.isEncrypted = encoding.HasWrapped(e); p.isEncrypted {
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
func (s *lister) finishPage(
	ctx context.Context, p *page, l *listRequest, picked []selected, last *watch.Entry, total int64, more bool,
) error {
	p.items = func(yield func(*watch.Entry, error) bool) {
		s.decodePageAhead(ctx, l, picked)
		for _, item := range picked {
			if !yield(item.entry, item.err) {
				return
			}
		}
	}
	p.isEncrypted = slices.ContainsFunc(picked, func(item selected) bool { return encoding.HasWrapped(item.entry) })
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

// tokenLifetime is how long a paged list can be continued at its revision. It is
// upstream's --etcd-compaction-interval (storagebackend.DefaultCompactInterval): after
// this time etcd compacts the token's revision. This server keeps history for longer,
// so it refuses the token by its age.
const tokenLifetime = 5 * time.Minute

// continueToken is upstream's token (apiserver/pkg/storage/continue.go) with the time of
// the list's first page, by the database's clock, and the number of objects that come
// after the page, so that they are counted once a list. Upstream's decoder ignores these
// members.
type continueToken struct {
	APIVersion      string `json:"v"`
	ResourceVersion int64  `json:"rv"`
	StartKey        string `json:"start"`
	IssuedSeconds   int64  `json:"issued,omitempty"`
	Left            int64  `json:"left,omitempty"`
}

// extendToken adds our members to upstream's token. A zero time adds nothing: the time is
// not known if the page was read while the database was not available.
func extendToken(token string, issued time.Time, left int64) (string, error) {
	if issued.IsZero() {
		return token, nil
	}
	c, err := decodeToken(token)
	if err != nil {
		return "", err
	}
	c.IssuedSeconds, c.Left = issued.Unix(), left
	data, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("encode continue token: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(data), nil
}

// tokenMembers returns our members of a token that upstream's decoder has accepted. They
// are zero where a token lacks them, such as a token of another server.
func tokenMembers(token string) (issued time.Time, left int64) {
	c, err := decodeToken(token)
	if err == nil && c.IssuedSeconds > 0 {
		issued = time.Unix(c.IssuedSeconds, 0)
	}
	return issued, max(c.Left, 0)
}

func decodeToken(token string) (c continueToken, err error) {
	data, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		return c, fmt.Errorf("decode continue token: %w", err)
	}
	return c, nil
}

// tokenExpired reports whether a token is older than tokenLifetime. A token does not
// expire if either time is unknown; it then lasts as long as the history.
func tokenExpired(issued, now time.Time) bool {
	return !issued.IsZero() && !now.IsZero() && now.Sub(issued) > tokenLifetime
}
