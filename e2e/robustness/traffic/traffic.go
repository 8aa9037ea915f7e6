package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"byre/e2e/robustness/history"
)

// Options say how much traffic there is.
type Options struct {
	// Keys is the number of objects; few objects make conflicts.
	Keys int
	// Writers and Watchers are clients of each Endpoint.
	Writers, Watchers int
	// Pause is the mean time between two operations of a writer.
	Pause time.Duration
	// Timeout bounds each operation; what it ends has an unknown outcome.
	Timeout time.Duration
	// NoTouch leaves out updates that change nothing: a program writes an object again that a
	// program of another release has written.
	NoTouch bool
	// Seed makes the choices repeatable, as far as timing allows.
	Seed uint64
}

// Endpoint is one way to one replica.
type Endpoint struct {
	Name    string // "replica-0 json"
	Replica string
	Client  Client
}

var colors = []string{"red", "blue"}

// Run makes traffic until ctx ends. Invariant: everything that it did and saw is in the
// recorder when it returns.
func Run(ctx context.Context, r *history.Recorder, endpoints []Endpoint, o Options) {
	var clients sync.WaitGroup
	seed := o.Seed
	for _, e := range endpoints {
		for n := range o.Writers {
			seed++
			w := &writer{
				recorder: r, endpoint: e, options: o,
				name:   fmt.Sprintf("%s writer %d", e.Name, n),
				random: rand.New(rand.NewPCG(o.Seed, seed)),
				known:  make(map[string]history.Object),
			}
			clients.Go(func() { w.run(ctx) })
		}
		for n := range o.Watchers {
			seed++
			w := &watcher{
				recorder: r, endpoints: endpoints, options: o,
				name:   fmt.Sprintf("%s watcher %d", e.Name, n),
				random: rand.New(rand.NewPCG(o.Seed, seed)),
				at:     e,
			}
			clients.Go(func() { w.run(ctx) })
		}
	}
	clients.Wait()
}

// writer is one client that reads and writes.
type writer struct {
	recorder *history.Recorder
	endpoint Endpoint
	options  Options
	name     string
	random   *rand.Rand
	// known are the objects as the client saw them last.
	known map[string]history.Object
	// seen is the greatest revision that the client has seen.
	seen  int64
	count int
}

func (w *writer) run(ctx context.Context) {
	for ctx.Err() == nil {
		w.step(ctx)
		pause := time.Duration(w.random.Int64N(int64(2*w.options.Pause) + 1))
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (w *writer) step(ctx context.Context) {
	name := fmt.Sprintf("key-%d", w.random.IntN(w.options.Keys))
	known := w.known[name]
	switch n := w.random.IntN(100); {
	case n < 45:
		w.put(ctx, name, known)
	case n < 50:
		w.do(ctx, &history.Operation{Kind: history.Patch, Object: w.fresh(name)})
	case n < 53:
		if known.Revision != 0 && !w.options.NoTouch {
			w.do(ctx, &history.Operation{Kind: history.Touch, Object: known})
		}
	case n < 60:
		w.do(ctx, &history.Operation{Kind: history.Delete, Object: history.Object{Name: name, Revision: known.Revision}})
	case n < 62:
		w.do(ctx, &history.Operation{Kind: history.Delete, Object: history.Object{Name: name}})
	case n < 80:
		w.do(ctx, &history.Operation{Kind: history.Get, Object: history.Object{Name: name}})
	case n < 82:
		w.do(ctx, &history.Operation{Kind: history.Get, Object: history.Object{Name: name}, Mode: history.Any})
	case n < 84 && w.seen > 0:
		w.do(ctx, &history.Operation{
			Kind: history.Get, Object: history.Object{Name: name}, Mode: history.NotOlderThan, At: w.seen,
		})
	default:
		w.do(ctx, w.list())
	}
}

// put makes the object or replaces what the client knows of it.
func (w *writer) put(ctx context.Context, name string, known history.Object) {
	o := w.fresh(name)
	o.Revision = known.Revision
	if known.Revision == 0 {
		w.do(ctx, &history.Operation{Kind: history.Create, Object: o})
		return
	}
	w.do(ctx, &history.Operation{Kind: history.Update, Object: o})
}

// fresh is a new state, with a value that nobody else writes.
func (w *writer) fresh(name string) history.Object {
	w.count++
	return history.Object{
		Name:  name,
		Value: fmt.Sprintf("%s %d", w.name, w.count),
		Color: colors[w.random.IntN(len(colors))],
	}
}

// list is a list of a kind by chance.
func (w *writer) list() *history.Operation {
	o := &history.Operation{Kind: history.List}
	switch w.random.IntN(8) {
	case 0:
		o.Mode = history.Any
	case 1:
		o.Mode, o.At = history.NotOlderThan, w.past(20)
	case 2, 3:
		o.Mode, o.At = history.Exact, w.past(200)
	}
	if o.At == 0 && (o.Mode == history.Exact || o.Mode == history.NotOlderThan) {
		o.Mode = history.Latest
	}
	// A stock server does not page a list that may be of any age.
	if o.Mode != history.Any && w.random.IntN(2) == 0 {
		o.Limit = 1 + w.random.Int64N(int64(w.options.Keys))
	}
	if w.random.IntN(3) == 0 {
		o.Color = colors[w.random.IntN(len(colors))]
	}
	return o
}

// past is a revision that the client has seen or that is a little older.
func (w *writer) past(most int64) int64 {
	if w.seen == 0 {
		return 0
	}
	return max(1, w.seen-w.random.Int64N(most))
}

// do performs an operation and records it.
func (w *writer) do(ctx context.Context, o *history.Operation) {
	o.Client, o.Replica = w.name, w.endpoint.Replica
	// The operation goes on when the traffic ends, so that its outcome is known.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.options.Timeout)
	defer cancel()
	o.Begin = w.recorder.Now()
	err := perform(ctx, w.endpoint.Client, o)
	o.End = w.recorder.Now()
	o.Outcome = history.OK
	if err != nil {
		o.Outcome, o.Error = w.endpoint.Client.Classify(err)
		o.Detail = err.Error()
	}
	w.recorder.AddOperation(o)
	w.learn(o)
}

// learn remembers what the operation showed.
func (w *writer) learn(o *history.Operation) {
	name := o.Object.Name
	switch {
	case o.Outcome == history.OK && o.Kind == history.Delete, o.Error == history.NotFound:
		delete(w.known, name)
	case o.Outcome == history.OK && o.Kind == history.List:
		w.seen = max(w.seen, o.Revision)
		if o.Mode != history.Latest {
			return
		}
		for _, item := range o.Items {
			w.known[item.Name] = item
		}
	case o.Outcome == history.OK:
		w.seen = max(w.seen, o.Result.Revision)
		w.known[name] = o.Result
	case o.Error == history.AlreadyExists, o.Error == history.Conflict, o.Outcome == history.Unknown:
		// Someone else wrote it, or nobody knows who: a client reads again.
		w.known[name] = history.Object{Name: name}
		if w.random.IntN(2) == 0 {
			return
		}
		w.do(context.Background(), &history.Operation{Kind: history.Get, Object: history.Object{Name: name}})
	}
}

// perform calls the client and fills in what it returned.
func perform(ctx context.Context, c Client, o *history.Operation) (err error) {
	switch o.Kind {
	case history.Create:
		o.Result, err = c.Create(ctx, o.Object)
	case history.Update, history.Touch:
		o.Result, err = c.Update(ctx, o.Object)
	case history.Patch:
		o.Result, err = c.Patch(ctx, o.Object)
	case history.Delete:
		err = c.Delete(ctx, o.Object.Name, o.Object.Revision)
	case history.Get:
		o.Result, err = c.Get(ctx, o.Object.Name, o.Mode, o.At)
	case history.List:
		err = listAll(ctx, c, o)
	default:
		err = fmt.Errorf("no operation %q", o.Kind)
	}
	return err
}

// errMixedPages means that the pages of a list were of different revisions.
var errMixedPages = errors.New("pages of one list are of different revisions")

// listAll reads all pages of a list.
func listAll(ctx context.Context, c Client, o *history.Operation) error {
	options := ListOptions{Mode: o.Mode, At: o.At, Color: o.Color, Limit: o.Limit}
	for {
		page, err := c.List(ctx, options)
		if err != nil {
			return err
		}
		if o.Revision != 0 && page.Revision != o.Revision {
			return fmt.Errorf("%w: %d and %d", errMixedPages, o.Revision, page.Revision)
		}
		o.Revision = page.Revision
		o.Items = append(o.Items, page.Items...)
		if page.Continue == "" {
			return nil
		}
		options.Continue, options.Mode, options.At = page.Continue, history.Latest, 0
	}
}

// isEOF reports whether a watch was closed without an error.
func isEOF(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) }

// endTimeout bounds how long a replica may answer that its database is not available: a new
// epoch may just have begun.
const endTimeout = time.Minute

// ListAtEnd lists the latest state at one endpoint after the traffic, or after a fault, and
// records that as an operation of its own client. It repeats a list that is refused with
// the advice to try again, for a minute.
func ListAtEnd(ctx context.Context, r *history.Recorder, e Endpoint) (*history.Operation, error) {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	for {
		o := &history.Operation{Client: e.Name + " at the end", Replica: e.Replica, Kind: history.List, Begin: r.Now(),
			Outcome: history.OK}
		page, err := e.Client.List(ctx, ListOptions{})
		if err == nil {
			o.End, o.Items, o.Revision = r.Now(), page.Items, page.Revision
			r.AddOperation(o)
			return o, nil
		}
		if _, retries := apierrors.SuggestsClientDelay(err); !retries || ctx.Err() != nil {
			return nil, fmt.Errorf("%s: the list at the end: %w", e.Name, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}
