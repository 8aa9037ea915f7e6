package history

import (
	"slices"
	"sync"
	"time"
)

// Object is what the test knows of an object.
type Object struct {
	Name string
	// Revision is metadata.resourceVersion; 0 means that there is no such object.
	Revision int64 `json:",omitempty"`
	// Value is unique to the write that made this state of the object.
	Value string `json:",omitempty"`
	// Color is the label that selectors look at.
	Color string `json:",omitempty"`
}

// Kind is what an operation does.
type Kind string

// The kinds of operations.
const (
	Create Kind = "create"
	Update Kind = "update" // replaces the state at revision Replaces
	Patch  Kind = "patch"  // without a precondition
	Touch  Kind = "touch"  // an update that changes nothing
	Delete Kind = "delete"
	Get    Kind = "get"
	List   Kind = "list"
)

// Mode is which revision a read asks for.
type Mode string

// The modes, as the parameters resourceVersion and resourceVersionMatch say them.
const (
	Latest       Mode = ""
	Any          Mode = "any"
	NotOlderThan Mode = "not older than"
	Exact        Mode = "exact"
)

// Outcome is what is known of an operation's effect.
type Outcome string

// The outcomes.
const (
	OK      Outcome = "ok"
	Failed  Outcome = "failed"  // it had no effect
	Unknown Outcome = "unknown" // it took effect once or not at all
)

// The kinds of errors that say something about the object, or about the server.
const (
	AlreadyExists = "AlreadyExists"
	NotFound      = "NotFound"
	Conflict      = "Conflict"
	Expired       = "Expired"
	// Internal is any answer with status 500.
	Internal = "InternalError"
)

// Operation is one call of a client.
type Operation struct {
	Client  string
	Replica string
	Kind    Kind
	// Object is what a write writes, and the name that a Get reads. Its Revision is
	// the precondition of an Update, Touch or Delete; a Delete at 0 has none.
	Object Object
	// Mode and At say which revision a Get or List asks for.
	Mode Mode  `json:",omitempty"`
	At   int64 `json:",omitempty"`
	// Color narrows a List to objects with this label; Limit is its page size.
	Color string `json:",omitempty"`
	Limit int64  `json:",omitempty"`

	Begin, End time.Duration
	Outcome    Outcome
	// Error is the kind of the error, Detail its text.
	Error  string `json:",omitempty"`
	Detail string `json:",omitempty"`
	// Result is the object as a write or a Get returned it.
	Result Object `json:",omitzero"`
	// Items and Revision are what a List returned, all pages together.
	Items    []Object `json:",omitempty"`
	Revision int64    `json:",omitempty"`
}

// EventType is the type of an event.
type EventType string

// The types of events.
const (
	Added    EventType = "ADDED"
	Modified EventType = "MODIFIED"
	Deleted  EventType = "DELETED"
	Bookmark EventType = "BOOKMARK"
	// InitialEnd is the bookmark that ends the initial events.
	InitialEnd EventType = "INITIAL_END"
)

// Event is one event of a watch. A Deleted event has the last state of the object at
// the revision of the delete.
type Event struct {
	Type   EventType
	Object Object
	At     time.Duration
}

// Watch is one watch, from its request to its end.
type Watch struct {
	Client  string
	Replica string
	// After is the revision that it starts after. With Initial it is 0, and the state
	// comes first.
	After   int64
	Initial bool   `json:",omitempty"`
	Color   string `json:",omitempty"`

	Begin, End time.Duration
	Events     []Event
	// Error is how it ended; empty means that the client or the server closed it.
	Error string `json:",omitempty"`
}

// Change is one row of the database's log.
type Change struct {
	Revision int64
	Name     string // empty for what is not an object of the test
	Deletes  bool   `json:",omitempty"`
}

// Range is the revisions First to Last.
type Range struct{ First, Last int64 }

// Log is what was read of the database's log, past the servers. Within Covered it has
// every revision.
type Log struct {
	Covered []Range
	Changes []Change
}

// Covers reports whether the log has every revision from first to last.
func (l *Log) Covers(first, last int64) bool {
	if first > last {
		return true
	}
	for _, r := range l.Covered {
		if r.First <= first && last <= r.Last {
			return true
		}
	}
	return false
}

// History is everything that was recorded.
type History struct {
	Operations []*Operation
	Watches    []*Watch
	Log        Log
	// Initial is the revision at which the test began with no objects, or after a Loss
	// with those that its First shows.
	Initial int64
	// IsCut says that the log may lack its last changes.
	IsCut bool `json:",omitempty"`
	// Loss is nil where the database kept all commits.
	Loss *Loss `json:",omitempty"`
}

// Loss is a failover to a database that lacks the last commits.
type Loss struct {
	// At is when the old database ended.
	At time.Duration
	// Common is the last revision that both databases have.
	Common int64
	// First is a latest list of all objects after every replica had written to the new
	// database.
	First *Operation
	// Log is what was read of the old database's log.
	Log Log `json:"-"`
}

// Recorder collects a history from several goroutines.
type Recorder struct {
	begin time.Time

	mu      sync.Mutex
	history History
	writes  int
	wake    chan struct{}
}

// NewRecorder starts the clock.
func NewRecorder() *Recorder { return &Recorder{begin: time.Now(), wake: make(chan struct{})} }

// Now is the time on the recorder's clock.
func (r *Recorder) Now() time.Duration { return time.Since(r.begin) }

// AddOperation records an operation that has returned.
func (r *Recorder) AddOperation(o *Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Operations = append(r.history.Operations, o)
	if o.IsWrite() && o.Outcome == OK {
		r.writes++
		close(r.wake)
		r.wake = make(chan struct{})
	}
}

// AddWatch records a watch that has ended.
func (r *Recorder) AddWatch(w *Watch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Watches = append(r.history.Watches, w)
}

// AddChanges records what was read of the log: all revisions from first to last.
func (r *Recorder) AddChanges(first, last int64, changes []Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	log := &r.history.Log
	log.Changes = append(log.Changes, changes...)
	if n := len(log.Covered); n > 0 && log.Covered[n-1].Last+1 == first {
		log.Covered[n-1].Last = last
		return
	}
	log.Covered = append(log.Covered, Range{first, last})
}

// Lose records that the database ends now, and that the next one lacks its last commits.
func (r *Recorder) Lose() *Loss {
	r.mu.Lock()
	defer r.mu.Unlock()
	log := r.history.Log
	r.history.Loss = &Loss{At: r.Now(), Log: Log{slices.Clone(log.Covered), slices.Clone(log.Changes)}}
	return r.history.Loss
}

// Keep takes back a Lose: the next database has all commits.
func (r *Recorder) Keep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Loss = nil
}

// Loss is what Lose returned last; nil before.
func (r *Recorder) Loss() *Loss {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.history.Loss
}

// Writes returns the number of writes acknowledged so far, and a channel that is closed at
// the next one.
func (r *Recorder) Writes() (int, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.writes, r.wake
}

// History is what was recorded. Nothing may be recorded afterwards.
func (r *Recorder) History(initial int64) *History {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Initial = initial
	return &r.history
}

// Operations are those recorded so far.
func (r *Recorder) Operations() []*Operation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*Operation(nil), r.history.Operations...)
}

// IsWrite reports whether the operation may change something.
func (o *Operation) IsWrite() bool { return o.Kind != Get && o.Kind != List && o.Kind != Touch }

// Puts reports whether the operation writes a value of its own.
func (o *Operation) Puts() bool { return o.Kind == Create || o.Kind == Update || o.Kind == Patch }
