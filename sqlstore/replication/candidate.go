package replication

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

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

// NewCandidate returns a candidate with a name that no other has. lock names a lock that this process has, and no other one
// at the same time: a holder that had the same one has ended. It is empty if there is none. A nil clock is that of the
// machine.
func NewCandidate(object *LeaseObject, duration time.Duration, lock string, clock Clock) (*Candidate, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	if clock == nil {
		clock = sinceBoot
	}
	return &Candidate{object: object, holder: host + "-" + rand.Text()[:8], lock: lock, duration: duration, clock: clock}, nil
}

// Holder is what State.Holder is if the candidate takes the lease.
func (c *Candidate) Holder() string { return c.holder }

// Look reads the lease. exists is false if nobody ever had it, or if it was deleted. isFree is true if Take may
// succeed: nobody has it, or its holder has ended, has released it, or has not renewed it for long enough. Until that time
// is over, a lease that was handed over is free for that candidate alone.
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
	if errors.Is(err, errChanged) {
		return nil, ErrLeaseTaken
	}
	if err != nil {
		return nil, err
	}
	isKnown := c.state.Serving && (c.state.Released || c.lock != "" && c.state.Lock == c.lock)
	l := &Lease{object: c.object, clock: c.clock, handOver: make(chan struct{}), mayFork: c.etag != "" && !isKnown, state: s, etag: etag}
	l.until.Store(int64(sent + s.Duration()*3/5))
	return l, nil
}
