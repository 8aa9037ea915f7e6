package sqlstore

import (
	"sync"
	"time"
)

// clockTolerance is how far the database's clock may get ahead of the time that has
// passed in this process before that counts as a jump.
const clockTolerance = 10 * time.Second

// clock tells which records and changes have reached an age. It uses the database's
// clock, which stamps the records, and compares it with this process's monotonic clock,
// which can't be set.
//
// Invariant: what was written before the database's clock was set forward is not older
// than the time that has passed since. As long as any of it is left, its age is counted
// by old, the clock as it would have gone on; the age of later records is counted by now.
// If the clock is set back, records only last longer.
type clock struct {
	mu sync.Mutex
	// began is the time of the first reading of the clock, and first the last revision
	// then. A later change is not older than the time since began.
	began time.Time
	first int64
	// old counts the ages up to revision jump; at is the time of its reading, by this
	// process's clock. jump is 0 if the database's clock has not jumped.
	old  time.Time
	at   time.Time
	jump int64
	// ahead is how much the database's clock is ahead of old.
	ahead time.Duration
}

// times are the clocks by which ages are counted; see clock.
type times struct {
	old, now time.Time
	jump     int64
	// jumped is true when the jump has just been noticed.
	jumped bool
}

// read takes a reading of the database's clock, made at the local time given.
func (c *clock) read(state State, local time.Time) times {
	c.mu.Lock()
	defer c.mu.Unlock()
	// A clock of this process has a monotonic reading, in which no jump shows.
	now := state.Time.Round(0)
	if c.began.IsZero() {
		c.began, c.first = local, state.Revision
		c.old, c.at = now, local
	}
	expected := c.old.Add(local.Sub(c.at))
	ahead := now.Sub(expected)
	jumped := ahead-c.ahead > clockTolerance
	switch {
	case jumped:
		c.jump = state.Revision
		c.old, c.ahead = expected, ahead
	case c.jump > 0 && ahead > clockTolerance:
		c.old, c.ahead = expected, ahead
	default:
		c.old, c.jump, c.ahead = now, 0, 0
	}
	c.at = local
	return times{c.old, now, c.jump, jumped}
}

// forget ends the distinction, because nothing from before the jump is left.
func (c *clock) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.old, c.jump, c.ahead = c.old.Add(c.ahead), 0, 0
}

// oldest returns the last revision that may have reached an age. While this process has
// run for less than that age, only the revisions up to first may have reached it.
func (c *clock) oldest(age time.Duration, state State, local time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if local.Sub(c.began) < age {
		return c.first
	}
	return state.Revision
}
