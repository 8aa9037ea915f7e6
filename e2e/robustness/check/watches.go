package check

import (
	"maps"

	"byre/e2e/robustness/history"
)

// checkWatches compares each watch with the sequence of changes.
func (j *judge) checkWatches(h *history.History, ref *reference) {
	for _, w := range h.Watches {
		after, events := w.After, w.Events
		if w.Initial {
			var ok bool
			if after, events, ok = j.checkInitial(w, ref); !ok {
				continue
			}
		}
		j.checkEvents(w, after, events, ref)
	}
}

// checkInitial compares the initial events with the state at the bookmark that ends
// them. It returns that revision and what follows it.
func (j *judge) checkInitial(w *history.Watch, ref *reference) (int64, []history.Event, bool) {
	state := map[string]int64{}
	for i, e := range w.Events {
		switch e.Type {
		case history.Added, history.Modified:
			state[e.Object.Name] = e.Object.Revision
		case history.Deleted:
			delete(state, e.Object.Name)
		case history.InitialEnd:
			at := e.Object.Revision
			want := map[string]int64{}
			for name, c := range ref.state(at) {
				if w.Color == "" || c.color == w.Color {
					want[name] = c.revision
				}
			}
			if ref.isWhole(at) && !maps.Equal(state, want) {
				j.report(e.At, WatchWhole, "the initial events of %s on %s end at %d with %v; it was %v", w.Client, w.Replica, at,
					state, want)
			}
			return at, w.Events[i+1:], true
		}
	}
	return 0, nil, false
}

// expected is one event that a watch should show.
type expected struct {
	kind history.EventType
	c    *change
	// value and color are those of the state that the event shows.
	value, color string
}

// expect says which event, if any, a change is for a watch of a color.
func (r *reference) expect(c *change, color string) (expected, bool) {
	before := r.last(c.name, c.revision-1)
	matched := before != nil && !before.deletes && (color == "" || before.color == color)
	matches := !c.deletes && (color == "" || c.color == color)
	switch {
	case matches && matched:
		return expected{history.Modified, c, c.value, c.color}, true
	case matches:
		return expected{history.Added, c, c.value, c.color}, true
	case matched:
		return expected{history.Deleted, c, before.value, before.color}, true
	default:
		return expected{}, false
	}
}

// checkEvents compares events with the changes after a revision, one by one.
func (j *judge) checkEvents(w *history.Watch, after int64, events []history.Event, ref *reference) {
	last := after
	var got []history.Event
	for _, e := range events {
		isBookmark := e.Type == history.Bookmark || e.Type == history.InitialEnd
		if e.Object.Revision < last || !isBookmark && e.Object.Revision == last {
			j.report(e.At, WatchOrder, "a watch by %s on %s shows %s %s at %d after revision %d", w.Client, w.Replica, e.Type,
				e.Object.Name, e.Object.Revision, last)
			return
		}
		last = e.Object.Revision
		if !isBookmark {
			got = append(got, e)
		}
	}
	if !ref.log.Covers(after+1, last) {
		return
	}
	for _, c := range ref.changes {
		if c.revision <= after || c.revision > last {
			continue
		}
		want, shows := ref.expect(c, w.Color)
		if !shows {
			continue
		}
		if len(got) == 0 || got[0].Object.Revision > c.revision {
			promise := WatchWhole
			if len(got) == 0 {
				promise = Bookmarks // only a bookmark can have moved the watch past it
			}
			j.report(w.End, promise, "a watch by %s on %s after %d up to %d leaves out %s at %d", w.Client, w.Replica, after,
				last, describe(c), c.revision)
			return
		}
		e := got[0]
		if e.Object.Revision < c.revision {
			break // reported below
		}
		got = got[1:]
		isSame := e.Type == want.kind && e.Object.Name == c.name
		if want.value != "" && (e.Object.Value != want.value || e.Object.Color != want.color) {
			isSame = false
		}
		if !isSame {
			j.report(e.At, WatchWhole, "a watch by %s on %s of %q shows %s %+v; expected %s %s: %s %s", w.Client, w.Replica,
				w.Color, e.Type, e.Object, want.kind, c.name, want.color, want.value)
		}
	}
	if len(got) > 0 {
		j.report(got[0].At, WatchWhole, "a watch by %s on %s of %q shows %s %+v, which it should not", w.Client, w.Replica,
			w.Color, got[0].Type, got[0].Object)
	}
}
