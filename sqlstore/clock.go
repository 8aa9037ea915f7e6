package sqlstore

import (
	"sync"
	"time"
)

// clockTolerance is how much more time may pass on the database's clock than on this
// process's clock, between two readings, before that counts as a jump.
const clockTolerance = 10 * time.Second

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
// last longer.
type clock struct {
	mu sync.Mutex
	// began is this process's time before the first reading of the clock, and first the
	// last revision of that reading. A change after first is younger than the time since
	// began.
	began time.Time
	first int64
	// old is the time by which records up to revision jump are judged, as of the last
	// reading; at is this process's time before that reading. jump is 0 unless the
	// database's clock was set forward.
	old  time.Time
	at   time.Time
	jump int64
	// ahead is how much the database's clock is ahead of old.
	ahead time.Duration
}

// times are the two times by which ages are counted; see clock.
type times struct {
	old, now time.Time
	jump     int64
	// jumped is true when the jump has just been noticed.
	jumped bool
}

// read takes a reading of the database's clock, state.Time, that was made between two times of
// this process's clock. However long the answer took, that time is no jump.
func (c *clock) read(state State, before, after time.Time) times {
	c.mu.Lock()
	defer c.mu.Unlock()
	// A driver in this process returns a time with a monotonic reading, which hides that
	// the clock was set. Round removes that reading.
	now := state.Time.Round(0)
	if c.began.IsZero() {
		c.began, c.first = before, state.Revision
		c.old, c.at = now, before
	}
	expected := c.old.Add(before.Sub(c.at))
	ahead := now.Sub(expected)
	jumped := ahead-c.ahead > clockTolerance+after.Sub(before)
	switch {
	case jumped:
		c.jump = state.Revision
		c.old, c.ahead = expected, ahead
	case c.jump > 0 && ahead > clockTolerance:
		c.old, c.ahead = expected, ahead
	default:
		c.old, c.jump, c.ahead = now, 0, 0
	}
	c.at = before
	return times{c.old, now, c.jump, jumped}
}

// forget makes now the time for all ages again. expiredSince calls it when no record and
// no change that was stamped before the jump is left.
func (c *clock) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.old, c.jump, c.ahead = c.old.Add(c.ahead), 0, 0
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
