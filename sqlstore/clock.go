package sqlstore

import (
	"context"
	"sync"
	"time"
)

// clockTolerance is how much more time may pass on the database's clock than on this
// process's clock, between two readings, before that counts as a jump.
const clockTolerance = 10 * time.Second

// maxReading is how long a reading of the database's clock may take. What was read longer ago
// does not say whether the clock was set. It must be less than clockTolerance, by which a reading
// that takes so long could otherwise look like a jump.
const maxReading = clockTolerance / 2

// clock tells which records and changes have reached an age. It uses the database's
// clock, which stamps the records, and compares it with this process's monotonic clock,
// which can't be set.
//
// Invariant: setting the database's clock forward does not make a record expire, or a
// change be compacted, before its time. clock keeps two times for that. A record written
// up to revision jump was stamped before the clock was set forward: its age is the
// difference to old, which continues the clock of before. A later record's age is the
// difference to now, the clock as it is. Once no record of before is left, forget ends
// the distinction. Without it, setting the clock forward by an hour would expire every
// Lease and Event of the last hour at once. Setting the clock back only makes records
// last longer. The history of a resource is judged by old for less long: see deletion.
type clock struct {
	// reading has a value while read reads the database's clock. Its capacity is 1.
	reading chan struct{}

	mu sync.Mutex
	// began is this process's time at the first reading of the clock, start that reading, and
	// first the last revision at that time. A change after first is younger than the time since began.
	began, start time.Time
	first        int64
	// old is the time by which records up to revision jump are judged, as of the last
	// reading; at is this process's time of that reading. jump is 0 unless the database's
	// clock was set forward.
	old  time.Time
	at   time.Time
	jump int64
	// jumped is this process's time when the jump was noticed.
	jumped time.Time
	// ahead is how much the database's clock is ahead of old.
	ahead time.Duration
}

// times are the two times by which ages are counted; see clock.
type times struct {
	old, now time.Time
	jump     int64
	// start and first are those of clock, and since is the time that has passed in this process since
	// the jump was noticed.
	start time.Time
	first int64
	since time.Duration
	// jumped is true when the jump has just been noticed.
	jumped bool
}

// read reads the state of the database, and its clock, until a reading takes no longer than
// maxReading. It makes one reading at a time: of two at the same time, the one that comes late
// would look as if the clock had been set back.
func (c *clock) read(ctx context.Context, read func(context.Context) (State, error)) (State, times, error) {
	select {
	case c.reading <- struct{}{}:
		defer func() { <-c.reading }()
	case <-ctx.Done():
		return State{}, times{}, ctx.Err()
	}
	for {
		before := time.Now()
		state, err := read(ctx)
		if err != nil {
			return state, times{}, err
		}
		if local := time.Now(); local.Sub(before) <= maxReading {
			return state, c.compare(state, local), nil
		}
	}
}

// compare compares the database's clock with this process's at the same time.
func (c *clock) compare(state State, local time.Time) times {
	c.mu.Lock()
	defer c.mu.Unlock()
	// A driver in this process returns a time with a monotonic reading, which hides that
	// the clock was set. Round removes that reading.
	now := state.Time.Round(0)
	if c.began.IsZero() {
		c.began, c.start, c.first = local, now, state.Revision
		c.old, c.at = now, local
	}
	expected := c.old.Add(local.Sub(c.at))
	ahead := now.Sub(expected)
	jumped := ahead-c.ahead > clockTolerance
	switch {
	case jumped:
		c.jump, c.jumped = state.Revision, local
		c.old, c.ahead = expected, ahead
	case c.jump > 0 && ahead > clockTolerance:
		c.old, c.ahead = expected, ahead
	default:
		c.old, c.jump, c.ahead = now, 0, 0
	}
	c.at = local
	return times{c.old, now, c.jump, c.start, c.first, local.Sub(c.jumped), jumped}
}

// deletion selects the changes of a resource up to a revision that have reached an age. It judges
// them by old if some were made before the clock was set forward, except in two cases. When the
// age has passed since then, all of these have reached it. If an earlier process has made the oldest
// one at a time after start, the clock was behind when this process started: what earlier processes
// made is judged by now, and changes after first, which that clock has stamped too early, are kept.
func (t times) deletion(h History, age time.Duration, upTo int64) Deletion {
	by := t.old
	switch {
	case h.First > t.jump || t.since >= age:
		by = t.now
	case h.First <= t.first && h.FirstTime.After(t.start):
		by, upTo = t.now, min(upTo, t.first)
	}
	return Deletion{Of: h.Resource, UpTo: upTo, Before: by.Add(-age)}
}

// isDue reports whether the oldest change of a history has reached an age, or is of unknown age.
func (t times) isDue(h History, age time.Duration) bool {
	return age >= 0 && h.First > 0 && (h.FirstTime.After(t.now) || h.FirstTime.Before(t.deletion(h, age, 0).Before))
}

// forget makes now the time for all ages again, unless the clock was set forward again after
// jump. expiredSince calls it when no record and no change that was stamped before the jump is
// left.
func (c *clock) forget(jump int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.jump != jump {
		return
	}
	c.old, c.jump, c.ahead = c.old.Add(c.ahead), 0, 0
}

// hasRun reports whether this process has run for some time.
func (c *clock) hasRun(long time.Duration, local time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return local.Sub(c.began) >= long
}

// oldest returns the last revision whose change can have reached an age. A change after
// first was made while this process ran: it can't be older than the time since began.
func (c *clock) oldest(age time.Duration, state State, local time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if local.Sub(c.began) < age {
		return c.first
	}
	return state.Revision
}
