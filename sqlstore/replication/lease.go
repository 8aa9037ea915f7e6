package replication

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"byre/sqlstore/bucket"
)

// Lease is a lease that this process has, or had.
type Lease struct {
	object *LeaseObject
	clock  Clock
	// until is when it becomes invalid, by the clock; 0 after it is lost or released.
	until atomic.Int64
	// handOver is closed when another process is to take the lease.
	handOver chan struct{}
	// mayFork is that of MayFork.
	mayFork bool

	// writing is held while the object is written. It guards state and etag, which are what the object has,
	// as far as that is known.
	writing sync.Mutex
	state   LeaseState
	etag    string
	// position is that of Serve; nil before.
	position func() (revision int64, txid uint64)

	// folder is what SetFolder has set.
	folder atomic.Pointer[string]
	// standby is what a standby has told last.
	standby atomic.Pointer[told]
}

// told is what a standby has told, and when that was first seen, by the clock.
type told struct {
	Standby
	at time.Duration
}

// Standby returns what a standby has told last of its copy while this process served, and how long ago that was; zero
// if none has told anything new.
func (l *Lease) Standby() (s Standby, age time.Duration) {
	if t := l.standby.Load(); t != nil && t.at > 0 {
		return t.Standby, l.clock() - t.at
	}
	return s, 0
}

// readStandby reads what a standby has told. The first one may be an old text.
func (l *Lease) readStandby(ctx context.Context, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s, err := l.object.ReadStandby(ctx)
	t := l.standby.Load()
	switch {
	case err != nil:
	case t == nil:
		l.standby.Store(&told{Standby: s})
	case t.Standby != s:
		l.standby.Store(&told{s, l.clock()})
	}
}

// ErrLeaseLost means that another process may have the lease.
var ErrLeaseLost = errors.New(
	"this server could not renew its lease in time, and another one may serve: it stops at once, and follows when it is started again")

// Check fails with ErrLost if the lease is not valid any more. Then it fails forever: extend finds what Check has
// stored.
func (l *Lease) Check() error {
	for {
		until := l.until.Load()
		switch {
		case int64(l.clock()) < until:
			return nil
		case l.until.CompareAndSwap(until, 0):
			return ErrLeaseLost
		}
	}
}

// extend makes the lease valid from when a renewal was sent. It fails with ErrLost if the lease has ended before: what
// asked Check meanwhile was told so.
func (l *Lease) extend(sent time.Duration) error {
	until := l.until.Load()
	if int64(l.clock()) >= until || !l.until.CompareAndSwap(until, int64(sent+l.state.Duration()*3/5)) {
		l.until.Store(0)
		return ErrLeaseLost
	}
	return nil
}

// MayFork reports whether another process may have acknowledged commits after the Position with which this one has
// taken the lease: the last holder has not served, or has neither released the lease, nor had the lock of this process.
func (l *Lease) MayFork() bool { return l.mayFork }

// State is the lease as it was last read or written.
func (l *Lease) State() LeaseState {
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.state
}

// HandOver is closed when another process is to take the lease.
func (l *Lease) HandOver() <-chan struct{} { return l.handOver }

// SetFolder says that a copy has begun, from which a new holder goes on. It tries again until the object has it,
// the lease is lost, or ctx ends. Serve was called before.
func (l *Lease) SetFolder(ctx context.Context, name string) error {
	l.folder.Store(&name)
	return l.insist(ctx, func(*LeaseState) {})
}

// Run renews the lease until ctx ends, and then returns nil, or until it is lost: then it returns ErrLost.
func (l *Lease) Run(ctx context.Context, logger *slog.Logger) error {
	state := l.State()
	interval := state.Duration() / 5
	pause, isFailing := interval, false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(min(pause, max(0, l.left()))):
		}
		if err := l.Check(); err != nil {
			return err
		}
		err := l.renew(ctx, func(*LeaseState) {})
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrLeaseLost):
			return err
		case err == nil:
			pause = interval
			l.readStandby(ctx, interval/3) // the next renewal waits for it
		default:
			pause = interval / 3
		}
		if err != nil && !isFailing {
			logger.WarnContext(ctx,
				"lease: it could not be renewed, and is tried again: the server stops if that fails for longer", "err", err, "left",
				l.left().String())
		}
		isFailing = err != nil
	}
}

// left is for how long the lease is valid.
func (l *Lease) left() time.Duration { return time.Duration(l.until.Load()) - l.clock() }

// renew writes the object with a change, which is made again if another process has changed the object
// without taking the lease. It fails with ErrLost if another one has taken it.
func (l *Lease) renew(ctx context.Context, change func(*LeaseState)) (err error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, l.state.Duration()/5)
	defer cancel()
	for range 2 {
		next := l.state
		if folder := l.folder.Load(); folder != nil {
			next.Folder = *folder
		}
		if l.position != nil {
			next.Position.Lineage = next.Holder
			next.Position.Revision, next.Position.TXID = l.position()
		}
		change(&next)
		next.Renewals++
		sent := l.clock()
		var etag string
		if etag, err = l.object.write(ctx, next, l.etag); err == nil {
			l.state, l.etag = next, etag
			if next.Released {
				return nil
			}
			return l.extend(sent)
		}
		if err := l.reread(ctx); err != nil {
			return err
		}
	}
	return err
}

// reread reads what the object has after a write has failed, which may have been made nevertheless.
func (l *Lease) reread(ctx context.Context) error {
	s, etag, err := l.object.read(ctx)
	if err != nil {
		return err
	}
	if etag == "" || s.Holder != l.state.Holder {
		l.until.Store(0)
		return ErrLeaseLost
	}
	if s.HandOverTo != "" && l.state.HandOverTo == "" {
		close(l.handOver)
	}
	l.state, l.etag = s, etag
	return nil
}

// Serve says that commits will follow, by a server with keys (State.Keys). Each renewal then asks for the position
// that a new holder must have. The database has the lineage State.Holder. Serve tries again until the lease is lost or
// ctx ends.
func (l *Lease) Serve(ctx context.Context, keys string, position func() (revision int64, txid uint64)) error {
	l.writing.Lock()
	l.position = position
	l.writing.Unlock()
	return l.insist(ctx, func(s *LeaseState) { s.Serving, s.Keys = true, keys })
}

// insist is renew until it succeeds, the lease is lost, or ctx ends.
func (l *Lease) insist(ctx context.Context, change func(*LeaseState)) error {
	for {
		err := l.renew(ctx, change)
		if err == nil || errors.Is(err, ErrLeaseLost) || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Second):
		}
		if err := l.Check(); err != nil {
			return err
		}
	}
}

// Release lets another process take the lease at once. complete says that State.Folder has all commits: otherwise
// nothing is handed over. The lease is not valid any more, whether Release fails or not. Run has returned.
func (l *Lease) Release(ctx context.Context, complete bool) error {
	l.until.Store(0)
	return l.renew(ctx, func(s *LeaseState) {
		if s.Released = true; !complete {
			s.HandOverTo = ""
		}
	})
}

// Clock returns the time since any moment. It is never set, and does not stop while the process or the
// machine does.
type Clock func() time.Duration

// sinceBoot is the Clock of the machine.
func sinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(int32(bootClock), &t); err != nil {
		panic(fmt.Sprintf("the system has no clock: %v", err)) // no lease can be valid without
	}
	return time.Duration(t.Nano())
}

// Candidate waits for the lease. One goroutine uses it.
type Candidate struct {
	object       *LeaseObject
	holder, lock string
	duration     time.Duration
	clock        Clock

	// state is the lease as it was seen last, etag its ETag, and since when that was first seen. length is the
	// duration of the last lease that was seen.
	state         LeaseState
	etag          string
	since, length time.Duration
}

// NewCandidate returns a candidate with a name that no other has. lock names a lock that this process has, and no other
// one at the same time: a holder that had the same one has ended. It is empty if there is none. A nil clock is that of
// the machine.
func NewCandidate(object *LeaseObject, duration time.Duration, lock string, clock Clock) (*Candidate, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	if clock == nil {
		clock = sinceBoot
	}
	return &Candidate{object: object, holder: host + "-" + rand.Text()[:8], lock: lock, duration: duration, clock: clock},
		nil
}

// Holder is what State.Holder is if the candidate takes the lease.
func (c *Candidate) Holder() string { return c.holder }

// Look reads the lease. exists is false if nobody ever had it, or if it was deleted. isFree is true if Take may
// succeed: nobody has it, or its holder has ended, has released it, or has not renewed it for long enough. Until that
// time is over, a lease that was handed over is free for that candidate alone.
func (c *Candidate) Look(ctx context.Context) (s LeaseState, exists, isFree bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.duration/5)
	defer cancel()
	s, etag, err := c.object.read(ctx)
	if err != nil {
		return c.state, c.etag != "", false, err
	}
	if etag != c.etag {
		c.since = c.clock() // later than the writing of it
	}
	c.state, c.etag = s, etag
	if etag != "" {
		c.length = s.Duration()
	}
	switch {
	case s.Holder == c.holder: // its own Take, whose answer was lost
		isFree = true
	case c.clock()-c.since >= c.length*4/5: // or nobody ever had it; who had one that was deleted may not know yet
		isFree = true
	case s.HandOverTo != "":
		isFree = s.Released && s.HandOverTo == c.holder
	default: // a crash releases nothing
		isFree = s.Released || c.lock != "" && s.Lock == c.lock
	}
	return s, etag != "", isFree, nil
}

// ErrLeaseTaken means that another process has changed the lease.
var ErrLeaseTaken = errors.New("another process has taken the lease")

// Take takes the lease as Look has last found it, after it was free. The process goes on from a database at a position;
// folder is the copy if there is no lease yet. It fails with ErrTaken.
func (c *Candidate) Take(ctx context.Context, folder string, at Position) (*Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, c.duration/5)
	defer cancel()
	if c.etag != "" {
		folder = c.state.Folder
	}
	s := LeaseState{
		Generation: c.state.Generation + 1, Holder: c.holder, Since: time.Now().UTC().Truncate(time.Second),
		Milliseconds: c.duration.Milliseconds(), Keys: c.state.Keys, Folder: folder, Position: at, Lock: c.lock,
	}
	sent := c.clock()
	etag, err := c.object.write(ctx, s, c.etag)
	if errors.Is(err, bucket.ErrChanged) {
		return nil, ErrLeaseTaken
	}
	if err != nil {
		return nil, err
	}
	isKnown := c.state.Serving && (c.state.Released || c.lock != "" && c.state.Lock == c.lock)
	l := &Lease{object: c.object, clock: c.clock, handOver: make(chan struct{}), mayFork: c.etag != "" && !isKnown,
		state: s, etag: etag}
	l.until.Store(int64(sent + s.Duration()*3/5))
	return l, nil
}

// Position says how far a database, or a copy of it, reaches.
type Position struct {
	// Lineage is State.Holder of the process that made the last commits; it is in the database too.
	Lineage string `json:"lineage"`
	// Revision is that of the last change.
	Revision int64 `json:"revision"`
	// TXID is the last file of a folder; 0 if the position is not that of a copy.
	TXID uint64 `json:"txid"`
}

// LeaseState is the content of the object.
type LeaseState struct {
	// Generation counts the holders.
	Generation int64 `json:"generation"`
	// Holder is the host name and a random text: no two processes have the same. Since is when it took
	// the lease, by its clock, for people.
	Holder string    `json:"holder"`
	Since  time.Time `json:"since"`
	// Milliseconds is the duration, and Renewals how often the holder has written the object.
	Milliseconds int64 `json:"durationMilliseconds"`
	Renewals     int64 `json:"renewals"`
	// Serving is true from before the holder's first commit that a client sees. Keys tells the keys of the last
	// holder for which that was so and those of another server apart.
	Serving bool   `json:"serving"`
	Keys    string `json:"keys"`
	// Folder is the copy of the database from which a new holder goes on; empty if there is none.
	Folder string `json:"folder"`
	// Position is what a new holder must have, in a copy or in its own database: what the last one that served has
	// acknowledged, as of the last renewal, but for what a crash may lose.
	Position Position `json:"position"`
	// Lock is that of NewCandidate.
	Lock string `json:"lock"`
	// HandOverTo asks the holder to stop, so that a candidate of this name takes the lease. Released says that it has
	// stopped.
	HandOverTo string `json:"handOverTo"`
	Released   bool   `json:"released"`
}

// IsReachedBy reports whether a database at p has everything that a new holder must have. One of the lineage of a
// holder that has not served yet is the successor of what that has taken the lease with.
func (s *LeaseState) IsReachedBy(p Position) bool {
	if s.Position == (Position{}) {
		return true // nobody has served
	}
	return (p.Lineage == s.Position.Lineage || p.Lineage == s.Holder) && p.Revision >= s.Position.Revision &&
		(p.TXID == 0 || p.TXID >= s.Position.TXID)
}

// Duration is how long a holder that does nothing keeps the lease at most.
func (s *LeaseState) Duration() time.Duration {
	return time.Duration(s.Milliseconds) * time.Millisecond
}

// The names of the objects in a destination.
const (
	leaseName   = "lease.json"
	standbyName = "standby.json"
)

// LeaseObject is the object that has the lease.
type LeaseObject struct{ place *bucket.Client }

// NewLeaseObject returns the object of a destination. It reaches for nothing.
func NewLeaseObject(place *bucket.Client) *LeaseObject { return &LeaseObject{place} }

// Read returns the lease; exists is false if nobody ever had it.
func (o *LeaseObject) Read(ctx context.Context) (s LeaseState, exists bool, err error) {
	s, etag, err := o.read(ctx)
	return s, etag != "", err
}

// read returns the lease and its ETag, which is empty if there is no object.
func (o *LeaseObject) read(ctx context.Context) (s LeaseState, etag string, err error) {
	etag, err = o.get(ctx, leaseName, &s)
	if err == nil && etag != "" && s.Milliseconds <= 0 {
		err = errors.New(leaseName + " is no lease")
	}
	if err != nil {
		return s, "", fmt.Errorf("read the lease: %w", err)
	}
	return s, etag, nil
}

// get reads an object of JSON, and returns its ETag, which is empty if there is none.
func (o *LeaseObject) get(ctx context.Context, name string, into any) (etag string, err error) {
	body, etag, err := o.place.Get(ctx, name, 0, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(body)
	if err = errors.Join(err, body.Close()); err == nil {
		err = json.Unmarshal(text, into)
	}
	if err == nil && etag == "" {
		err = fmt.Errorf("%s has no ETag", name)
	}
	return etag, err
}

// Standby is what a process that follows tells of its copy, in the object standby.json beside the lease.
type Standby struct {
	// Name is that of its candidate.
	Name string `json:"name"`
	// The copy is that of Folder, up to Position. Time is when that was so, by its clock, for people.
	Folder   string    `json:"folder"`
	Position Position  `json:"position"`
	Time     time.Time `json:"time"`
}

// WriteStandby replaces the object. The caller bounds ctx.
func (o *LeaseObject) WriteStandby(ctx context.Context, s Standby) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	_, err = o.place.Put(ctx, standbyName, bytes.NewReader(text))
	return err
}

// ReadStandby returns what a standby has told last; zero if none ever did.
func (o *LeaseObject) ReadStandby(ctx context.Context) (s Standby, err error) {
	_, err = o.get(ctx, standbyName, &s)
	return s, err
}

// write is Replace of the client.
func (o *LeaseObject) write(ctx context.Context, s LeaseState, etag string) (string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	if etag, err = o.place.Replace(ctx, leaseName, text, etag); err != nil {
		return "", fmt.Errorf("write the lease: %w", err)
	}
	return etag, nil
}

// ErrUnconditional means that the service ignores the conditions of a write.
var ErrUnconditional = errors.New(
	"the S3 service ignores If-None-Match or If-Match, by which one server at a time gets the lease: use a service that honours conditional writes")

// Probe fails with ErrUnconditional if the service writes an object that it must not write.
func (o *LeaseObject) Probe(ctx context.Context) (err error) {
	name := leaseName + "-probe-" + rand.Text()
	etag, err := o.place.Replace(ctx, name, []byte("1"), "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.place.Delete(context.WithoutCancel(ctx), name)) }()
	if _, err := o.place.Replace(ctx, name, []byte("2"), ""); !errors.Is(err, bucket.ErrChanged) {
		return errors.Join(ErrUnconditional, err)
	}
	if etag, err = o.place.Replace(ctx, name, []byte("3"), etag); err != nil {
		return err
	}
	if _, err := o.place.Replace(ctx, name, []byte("4"), etag+"0"); !errors.Is(err, bucket.ErrChanged) {
		return errors.Join(ErrUnconditional, err)
	}
	return nil
}

// ErrLeaseNobody means that no process holds the lease.
var ErrLeaseNobody = errors.New("no server holds the lease: start one with --standby")

// RequestHandOver asks the holder to stop, so that the candidate of a name takes the lease. It returns the lease as
// it was.
func (o *LeaseObject) RequestHandOver(ctx context.Context, name string) (LeaseState, error) {
	for {
		s, etag, err := o.read(ctx)
		switch {
		case err != nil:
			return s, err
		case etag == "" || s.Released:
			return s, ErrLeaseNobody
		}
		s.HandOverTo = name
		if _, err = o.write(ctx, s, etag); !errors.Is(err, bucket.ErrChanged) {
			return s, err
		}
	}
}
