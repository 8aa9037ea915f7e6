package history

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	genericstorage "k8s.io/apiserver/pkg/storage"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
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
	if w.chosen.until != "" || w.chosen.order != "" {
		return apierrors.NewBadRequest("the field selectors until and order are for lists")
	}
	last := uint64(max(state.Revision, 0))
	switch {
	case asked > last:
		return genericstorage.NewTooLargeResourceVersionError(asked, last, 1)
	case w.options.SendInitialEvents != nil && *w.options.SendInitialEvents, w.options.SendInitialEvents == nil && asked == 0:
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
	if lost := w.chosen.lostAfter(w.at, w.histories); lost > 0 {
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
	if in := w.chosen.query.Namespaces; in != nil && !slices.Contains(in, e.New.Namespace) || !w.chosen.selects(&e.Change) {
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
		return apierrors.NewResourceExpired("the history has begun again, because the database was restored or this server has fallen far behind it: list again")
	}
	return err
}

// expiredSince is the error for a watch that lacks changes after a revision.
func expiredSince(revision int64, histories []sqlstore.History) error {
	return expired(revision, lastCompacted(histories))
}
