package traffic

import (
	"context"
	"math/rand/v2"
	"time"

	"byre/e2e/robustness/history"
)

// watcher is one client that lists and watches as an informer does, and now and then
// moves to another replica or goes back to a revision that it has seen.
type watcher struct {
	recorder  *history.Recorder
	endpoints []Endpoint
	options   Options
	name      string
	random    *rand.Rand
	at        Endpoint
	// color narrows the present run of watches.
	color string
	// revisions are some that the run has passed: its watches may start after each.
	revisions []int64
}

// perWatch bounds the time of one watch, so that there are many.
const perWatch = 2 * time.Second

func (w *watcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		w.color = ""
		if w.random.IntN(3) == 0 {
			w.color = colors[w.random.IntN(len(colors))]
		}
		w.revisions = nil
		if w.random.IntN(2) == 0 {
			if !w.watch(ctx, WatchOptions{Initial: true, Color: w.color}) {
				w.rest(ctx)
				continue
			}
		} else if !w.list(ctx) {
			w.rest(ctx)
			continue
		}
		w.follow(ctx)
	}
}

// follow watches from where the last watch ended, or somewhat before.
func (w *watcher) follow(ctx context.Context) {
	for range 8 {
		if ctx.Err() != nil || len(w.revisions) == 0 {
			return
		}
		after := w.revisions[len(w.revisions)-1]
		if w.random.IntN(4) == 0 {
			after = w.revisions[max(0, len(w.revisions)-1-w.random.IntN(50))]
		}
		if !w.watch(ctx, WatchOptions{After: after, Color: w.color}) {
			w.rest(ctx)
		}
		if w.random.IntN(2) == 0 {
			w.at = w.endpoints[w.random.IntN(len(w.endpoints))]
		}
	}
}

// rest waits a little after a failure, and turns to any replica.
func (w *watcher) rest(ctx context.Context) {
	w.at = w.endpoints[w.random.IntN(len(w.endpoints))]
	select {
	case <-ctx.Done():
	case <-time.After(w.options.Pause):
	}
}

// list begins a run with a list, which is recorded as that of any client.
func (w *watcher) list(ctx context.Context) bool {
	lister := writer{recorder: w.recorder, endpoint: w.at, options: w.options, name: w.name, random: w.random,
		known: map[string]history.Object{}}
	o := &history.Operation{Kind: history.List, Color: w.color}
	if w.random.IntN(2) == 0 {
		o.Mode = history.Any
	}
	lister.do(ctx, o)
	if o.Outcome != history.OK {
		return false
	}
	w.revisions = []int64{o.Revision}
	return true
}

// watch watches once; false means that it ended with an error. Expired empties
// revisions: the run has to begin anew.
func (w *watcher) watch(ctx context.Context, o WatchOptions) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(w.random.Int64N(int64(perWatch))))
	defer cancel()
	seen := &history.Watch{Client: w.name, Replica: w.at.Replica, After: o.After, Initial: o.Initial, Color: o.Color,
		Begin: w.recorder.Now()}
	defer func() {
		seen.End = w.recorder.Now()
		w.recorder.AddWatch(seen)
	}()
	stream, err := w.at.Client.Watch(ctx, o)
	if err == nil {
		defer stream.Stop()
		err = w.consume(stream, seen)
	}
	if ctx.Err() != nil || isEOF(err) {
		return true
	}
	_, seen.Error = w.at.Client.Classify(err)
	if seen.Error == history.Expired {
		w.revisions = nil
	}
	return false
}

// consume records the events of a watch until it ends.
func (w *watcher) consume(stream Stream, seen *history.Watch) error {
	// Before the initial events have ended, a revision is no place to resume at.
	isInitial := seen.Initial
	for {
		kind, object, err := stream.Next()
		if err != nil {
			return err
		}
		seen.Events = append(seen.Events, history.Event{Type: kind, Object: object, At: w.recorder.Now()})
		if kind == history.InitialEnd {
			isInitial = false
		}
		if !isInitial {
			w.revisions = append(w.revisions, object.Revision)
		}
	}
}
