package history

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	genericstorage "k8s.io/apiserver/pkg/storage"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"byre/apiserver/storage"
	"byre/apiserver/storage/changes"
	"byre/sqlstore"
	"byre/watch"
)

// watcher is one watch. Its goroutine takes changes from the tail's window, and from the database
// what the window does not have.
type watcher struct {
	history *Storage
	options *internalversion.ListOptions
	chosen  chosen
	rights  *changes.Rights
	window  *window
	storage.EventStream

	// at is the last revision that was examined, and started the one after which the watch began.
	at, started int64
	// initial is the last revision of the changes that the watch begins with, and 0 once all of
	// them are sent.
	initial int64
	// histories are those at the start: what was deleted before is not missed.
	histories []sqlstore.History
	bookmarks storage.BookmarkSchedule
}

// Watch implements rest.Watcher. Each change is an ADDED event, in the order of the revisions. A watch
// without a resourceVersion begins with the changes that a list has.
func (s *Storage) Watch(ctx context.Context, options *internalversion.ListOptions) (apiwatch.Interface, error) {
	if options == nil {
		options = &internalversion.ListOptions{}
	}
	asked, err := genericstorage.APIObjectVersioner{}.ParseResourceVersion(options.ResourceVersion)
	if err != nil {
		return nil, apierrors.NewBadRequest("invalid resource version: " + err.Error())
	}
	rights, err := s.config.RightsOf(ctx)
	if err != nil {
		return nil, err
	}
	w := &watcher{history: s, options: options, rights: rights}
	if w.window, err = s.tail.join(ctx); err != nil {
		return nil, changes.APIError(err)
	}
	if options.AllowWatchBookmarks {
		deadline, _ := ctx.Deadline()
		w.bookmarks = storage.NewBookmarkSchedule(clock.RealClock{}, storage.DefaultBookmarkInterval, deadline)
	}
	w.EventStream, ctx = storage.NewEventStream(ctx)
	go func() {
		defer s.tail.leave(w.window)
		defer w.bookmarks.Stop()
		w.Run(ctx, func(ctx context.Context) error {
			err := w.begin(ctx, asked)
			if w.initial == 0 {
				utilflowcontrol.WatchInitialized(ctx)
			}
			for err == nil {
				err = w.next(ctx)
			}
			return watchError(err)
		})
	}()
	return w, nil
}

// begin finds the revision after which the watch begins.
func (w *watcher) begin(ctx context.Context, asked uint64) error {
	driver := w.history.config.Driver
	state, err := driver.State(ctx)
	if err != nil {
		return changes.APIError(err)
	}
	if w.histories, err = driver.Histories(ctx); err != nil {
		return changes.APIError(err)
	}
	w.chosen = w.history.choose(ctx, w.options, w.histories)
	if err := w.chosen.check(); err != nil {
		return err
	}
	if w.chosen.until != "" || w.chosen.order != "" || w.chosen.blame != "" {
		return apierrors.NewBadRequest("the field selectors until, order and blame are for lists")
	}
	last := uint64(max(state.Revision, 0))
	switch {
	case asked > last:
		return genericstorage.NewTooLargeResourceVersionError(asked, last, 1)
	case w.options.SendInitialEvents != nil && *w.options.SendInitialEvents, w.options.SendInitialEvents == nil &&
		asked == 0:
		w.initial = state.Revision
		w.started = w.initial
		if w.chosen.since != "" {
			w.at, err = w.history.revisionAt(ctx, w.chosen.since, &w.chosen, w.histories)
			w.at = min(w.at, w.initial)
		}
		return err
	case asked == 0:
		w.at = state.Revision
	default:
		w.at = int64(asked) //nolint:gosec // not greater than last
	}
	w.started = w.at
	if w.chosen.isCompacted(w.at, w.histories) {
		return expiredSince(w.at, w.histories)
	}
	return nil
}

// next waits for changes, or until a bookmark is due, and sends events.
func (w *watcher) next(ctx context.Context) error {
	found, err := w.history.tail.view(w.window, w.at)
	if err != nil {
		return err
	}
	entries, last := found.entries, max(found.last, w.at)
	if found.isBehind {
		if entries, last, err = w.catchUp(ctx, found.last); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if err := w.send(ctx, e); err != nil {
			return err
		}
	}
	isNew := last > w.at
	w.at = last
	if w.initial > 0 && w.at >= w.initial {
		if err := w.endInitial(ctx); err != nil {
			return err
		}
	}
	if w.bookmarks.Due() && w.at > w.started {
		if err := w.Send(ctx, apiwatch.Event{Type: apiwatch.Bookmark, Object: bookmark(w.at)}); err != nil {
			return err
		}
	}
	if isNew {
		return nil
	}
	select {
	case <-found.changed:
	case <-w.bookmarks.Timer():
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// endInitial marks the end of the changes that the watch has begun with. It returns the seats that
// priority and fairness gave the request: until now the watch has cost what a list costs.
func (w *watcher) endInitial(ctx context.Context) error {
	w.initial = 0
	utilflowcontrol.WatchInitialized(ctx)
	if w.options.SendInitialEvents == nil || !w.options.AllowWatchBookmarks {
		return nil
	}
	end := bookmark(w.at)
	end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	return w.Send(ctx, apiwatch.Event{Type: apiwatch.Bookmark, Object: end})
}

func bookmark(revision int64) *Change {
	return &Change{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.FormatInt(revision, 10)}}
}

// catchUp reads changes from the database, up to a revision. It returns the last revision that it has
// examined.
func (w *watcher) catchUp(ctx context.Context, upTo int64) ([]*entry, int64, error) {
	driver := w.history.config.Driver
	histories, err := driver.Histories(ctx)
	if err != nil {
		return nil, 0, changes.APIError(err)
	}
	chosen := w.history.choose(ctx, w.options, histories)
	if chosen.nothing {
		return nil, upTo, nil
	}
	chosen.query.After, chosen.query.Limit, chosen.query.Size = w.at, readChanges, readBytes
	found, err := driver.Changes(ctx, chosen.query)
	if err != nil {
		return nil, 0, changes.APIError(err)
	}
	if histories, err = driver.Histories(ctx); err != nil {
		return nil, 0, changes.APIError(err)
	}
	if chosen.lostAfter(w.at, histories) != chosen.lostAfter(w.at, w.histories) {
		return nil, 0, expiredSince(w.at, histories)
	}
	created := changes.NewCreations(driver)
	var entries []*entry
	for i := range found {
		if found[i].Revision > upTo {
			return entries, upTo, nil
		}
		entries = append(entries, &entry{Change: found[i], created: created})
	}
	if len(entries) == 0 {
		return nil, upTo, nil
	}
	return entries, entries[len(entries)-1].Revision, nil
}

// send sends a change, if it is selected and the user may see it.
func (w *watcher) send(ctx context.Context, e *entry) error {
	if !w.chosen.selects(&e.Change) {
		return nil
	}
	if sees, err := w.rights.Sees(ctx, &e.Change, e.created); !sees || err != nil {
		return err
	}
	for {
		err := e.prepare(ctx, w.history)
		if err == nil {
			break
		}
		if !apierrors.IsServiceUnavailable(err) {
			return err
		}
		if _, err := w.history.tail.view(w.window, w.at); err != nil { // the server stops
			return err
		}
		select { // the watch waits for the database, as the tail does
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return w.Send(ctx, apiwatch.Event{Type: apiwatch.Added, Object: e})
}

// watchError converts an error of the feed to one of the API. That of a feed that has stopped is
// none: the server stops.
func watchError(err error) error {
	if errors.Is(err, watch.ErrCompacted) {
		return apierrors.NewResourceExpired(
			"the history has begun again, because the database was restored or this server has fallen far behind it: list again")
	}
	return err
}

// expiredSince is the error for a watch that lacks changes after a revision.
func expiredSince(revision int64, histories []sqlstore.History) error {
	var last int64
	for i := range histories {
		last = max(last, histories[i].ResumableAfter)
	}
	return expired(revision, last)
}

const (
	// tailChanges and tailBytes bound what the tail reads at once.
	tailChanges = 2048
	tailBytes   = 4 << 20
	// wholeChanges bounds how many changes are read together for the values that they replaced.
	wholeChanges = 128
	// windowChanges and windowBytes bound the changes in memory, by number and by the bytes of
	// their values.
	windowChanges = 4096
	windowBytes   = 8 << 20
	// pause is the least time between two additions to the window. It bounds what watches cost the
	// database, however often it is written to; a change that comes later than that after the
	// last is added at once.
	pause = 100 * time.Millisecond
	// retryInterval is how long the tail waits after a read that has failed.
	retryInterval = time.Second
)

// tail has each change once for all watches of the process, while there are any. It reads those of other processes.
type tail struct {
	driver sqlstore.Driver
	feed   *watch.Feed
	// joined receives when the first watch has joined.
	joined chan struct{}

	mu sync.Mutex
	// window is nil while nobody watches.
	window *window
	// published has changes that this process has made and the window lacks, in order. They lack the values that
	// they replaced.
	published []sqlstore.Change
	closed    bool
	// watches are the goroutines of the watches.
	watches sync.WaitGroup

	// whole guards, and has, the changes that were read last for entries without the values that they replaced.
	whole struct {
		sync.Mutex
		changes []sqlstore.Change
	}
}

// readWhole reads a change with the value that it replaced, and those that follow on it, which are probably asked for
// next. It fails with the code 410 if the change is deleted.
func (t *tail) readWhole(ctx context.Context, revision int64) (*sqlstore.Change, error) {
	t.whole.Lock()
	defer t.whole.Unlock()
	find := func() *sqlstore.Change {
		i, found := slices.BinarySearchFunc(t.whole.changes, revision, func(c sqlstore.Change, r int64) int {
			return int(c.Revision - r)
		})
		if !found {
			return nil
		}
		return &t.whole.changes[i]
	}
	if c := find(); c != nil {
		return c, nil
	}
	var err error
	t.whole.changes, err = t.driver.Changes(ctx,
		sqlstore.ChangesQuery{After: revision - 1, Limit: wholeChanges, Size: tailBytes, Kept: true})
	if err != nil {
		return nil, changes.APIError(err)
	}
	if c := find(); c != nil {
		return c, nil
	}
	return nil, expired(revision, revision)
}

// window has the changes that the tail has read last.
//
// Invariant: it has every change after the revision after, up to last, in order. Watches send what
// it has, and would otherwise miss changes. The tail keeps it: it adds what was published or is read after last,
// without a selection, and ends the window if a revision is missing.
type window struct {
	after int64
	last  watch.Position
	// entries is replaced and never changed in place: watches hold parts of it.
	entries []*entry
	bytes   int
	// created is that of the entries which come next.
	created *changes.Creations
	// changed is closed at the next change of the window, which makes another one.
	changed chan struct{}
	// ended is the error with which the watches end; nil while the window lives.
	ended   error
	watches int
}

func newTail(driver sqlstore.Driver, feed *watch.Feed) *tail {
	return &tail{driver: driver, feed: feed, joined: make(chan struct{}, 1)}
}

// publish keeps changes that this process has made, so that read need not read them from the database.
func (t *tail) publish(found []sqlstore.Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.window == nil {
		return
	}
	if len(t.published) > tailChanges { // the window is far behind, and reads them
		t.published = nil
	}
	t.published = append(t.published, found...)
}

// next returns published changes that follow on a revision, without a gap. If there are none, it returns how many
// changes are to be read before the first published one.
func (t *tail) next(after int64) (found []sqlstore.Change, missing int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, size := 0, 0
	for n < len(t.published) && t.published[n].Revision <= after {
		n++
	}
	t.published = t.published[n:]
	if len(t.published) == 0 {
		return nil, tailChanges
	}
	if first := t.published[0].Revision; first > after+1 {
		return nil, int(min(first-after-1, tailChanges))
	}
	for n = 0; n < len(t.published) && n < tailChanges && size < tailBytes &&
		t.published[n].Revision == after+1+int64(n); n++ {
		size += t.published[n].Size()
	}
	found, t.published = t.published[:n:n], t.published[n:]
	return found, 0
}

// run reads changes until ctx ends. Then it ends the watches, and waits for their goroutines.
func (t *tail) run(ctx context.Context) {
	isFailing := false
	for t.awaitWatch(ctx) {
		err := t.read(ctx)
		if ctx.Err() != nil {
			break
		}
		interval := pause
		if err != nil {
			interval = retryInterval
		}
		if (err != nil) != isFailing {
			isFailing = err != nil
			klog.InfoS("Watches of changes wait for the database", "failing", isFailing, "err", err)
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
		}
	}
	t.mu.Lock()
	t.closed = true
	if t.window != nil {
		t.window.end(watch.ErrClosed)
	}
	t.mu.Unlock()
	t.watches.Wait()
}

// awaitWatch waits until there is a watch. It returns false when ctx ends.
func (t *tail) awaitWatch(ctx context.Context) bool {
	for ctx.Err() == nil {
		t.mu.Lock()
		watched := t.window != nil
		t.mu.Unlock()
		if watched {
			return true
		}
		select {
		case <-t.joined:
		case <-ctx.Done():
		}
	}
	return false
}

// join adds a watch, which calls leave when it ends. run waits until then.
func (t *tail) join(ctx context.Context) (*window, error) {
	// The position comes before the state that the watch reads next: so that the window has what is
	// later than that state.
	at, err := t.feed.Position(ctx)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, watch.ErrClosed
	}
	if t.window == nil {
		t.window, t.published = &window{changed: make(chan struct{})}, nil
		t.window.restart(at, t.driver)
		t.feed.FollowPublished(t.publish)
		select {
		case t.joined <- struct{}{}:
		default:
		}
	}
	t.window.watches++
	t.watches.Add(1)
	return t.window, nil
}

func (t *tail) leave(w *window) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.watches--; w.watches == 0 && t.window == w {
		t.endWindow()
	}
	t.watches.Done()
}

// endWindow has the feed tell of no further changes. The caller holds mu.
func (t *tail) endWindow() {
	t.window = nil
	t.feed.FollowPublished(nil)
}

// read waits for changes after the window, and reads them.
func (t *tail) read(ctx context.Context) error {
	t.mu.Lock()
	w := t.window
	if w == nil {
		t.mu.Unlock()
		return nil
	}
	after := w.last
	t.mu.Unlock()
	err := t.feed.AwaitChange(ctx, after)
	var found []sqlstore.Change
	if err == nil && t.isWatched(w) {
		var missing int
		if found, missing = t.next(after.Revision); missing > 0 {
			found, err = t.driver.Changes(ctx, sqlstore.ChangesQuery{After: after.Revision, Limit: missing, Size: tailBytes})
		}
		if errors.Is(err, sqlstore.ErrCompacted) {
			return t.restart(ctx, w)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case errors.Is(err, watch.ErrCompacted) || err == nil && !areDense(found, after.Revision):
		// The watches end with 410, as all watches of the process do.
		w.end(watch.ErrCompacted)
		if t.window == w {
			t.endWindow()
		}
		return nil
	case err != nil:
		return changes.APIError(err)
	}
	w.add(found, t.driver)
	return nil
}

func (t *tail) isWatched(w *window) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.window == w
}

// restart begins the window again, because retention has deleted changes that it lacks. The
// watches read what is left from the database, and end if something that they select is not.
func (t *tail) restart(ctx context.Context, w *window) error {
	at, err := t.feed.Position(ctx)
	if err != nil {
		return changes.APIError(err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	w.restart(at, t.driver)
	w.change()
	return nil
}

// areDense reports whether the changes are those after a revision, and none is missing.
func areDense(found []sqlstore.Change, after int64) bool {
	for i := range found {
		if found[i].Revision != after+int64(i)+1 {
			return false
		}
	}
	return true
}

func (w *window) restart(at watch.Position, driver sqlstore.Driver) {
	w.after, w.last, w.entries, w.bytes = at.Revision, at, nil, 0
	w.created = changes.NewCreations(driver)
}

// change wakes the watches.
func (w *window) change() {
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *window) end(err error) {
	if w.ended == nil {
		w.ended = err
		w.change()
	}
}

// add adds changes, and drops the oldest ones that are too many.
func (w *window) add(found []sqlstore.Change, driver sqlstore.Driver) {
	if len(found) == 0 {
		return
	}
	if slices.ContainsFunc(found, func(c sqlstore.Change) bool { return changes.AreChanged(&c) }) {
		w.created = changes.NewCreations(driver)
	}
	added := make([]*entry, len(found))
	for i := range found {
		added[i] = &entry{Change: found[i], created: w.created}
		w.bytes += found[i].Size()
	}
	w.last.Revision = added[len(added)-1].Revision
	all, dropped := slices.Concat(w.entries, added), 0
	for len(all)-dropped > windowChanges || w.bytes > windowBytes && dropped < len(all) {
		w.after = all[dropped].Revision
		w.bytes -= all[dropped].Size()
		dropped++
	}
	w.entries = slices.Clone(all[dropped:])
	w.change()
}

// view is what a watch at a revision finds in the window.
type view struct {
	// isBehind: changes after the revision are not in the window any more.
	isBehind bool
	entries  []*entry
	// last is the last revision of the window.
	last    int64
	changed <-chan struct{}
}

// view returns what the window has after a revision. It fails with the error that has ended it.
func (t *tail) view(w *window, after int64) (view, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.ended != nil {
		return view{}, w.ended
	}
	v := view{isBehind: after < w.after, last: w.last.Revision, changed: w.changed}
	if !v.isBehind {
		first, _ := slices.BinarySearchFunc(w.entries, after+1, func(e *entry, revision int64) int {
			return int(e.Revision - revision)
		})
		v.entries = w.entries[first:]
	}
	return v, nil
}

// entry is a change as watches share it: its item is made once, and each encoding of it.
type entry struct {
	sqlstore.Change
	created *changes.Creations

	// mu guards what follows.
	mu      sync.Mutex
	item    *Change
	encoded map[runtime.Identifier][]byte
}

var _ runtime.CacheableObject = (*entry)(nil)

// prepare makes the item, unless it is there. It fails if what the change replaced can't be read; the next call tries
// that again.
func (e *entry) prepare(ctx context.Context, s *Storage) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.item != nil {
		return nil
	}
	c := &e.Change
	if c.Old != nil && c.Old.Value == nil { // as it was published
		whole, err := s.tail.readWhole(ctx, c.Revision)
		if err != nil {
			return err
		}
		c = whole
	}
	var err error
	e.item, err = s.item(ctx, c, false)
	return err
}

// GetObject implements runtime.CacheableObject. The caller has called prepare.
func (e *entry) GetObject() runtime.Object { return e.item.DeepCopyObject() }

// CacheEncode implements runtime.CacheableObject.
func (e *entry) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	data, err := e.encoding(id, encode)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

func (e *entry) encoding(id runtime.Identifier, encode func(runtime.Object, io.Writer) error) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if data, known := e.encoded[id]; known {
		return data, nil
	}
	var data bytes.Buffer
	if err := encode(e.GetObject(), &data); err != nil {
		return nil, err
	}
	if e.encoded == nil {
		e.encoded = make(map[runtime.Identifier][]byte)
	}
	e.encoded[id] = data.Bytes()
	return data.Bytes(), nil
}

// GetObjectKind implements runtime.Object.
func (e *entry) GetObjectKind() schema.ObjectKind { return e.item.GetObjectKind() }

// DeepCopyObject implements runtime.Object.
func (e *entry) DeepCopyObject() runtime.Object { return e.GetObject() }
