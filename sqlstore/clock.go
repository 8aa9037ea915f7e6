package sqlstore

import (
	"sync"
	"time"
)

// clockTolerance is how far the database's clock may get ahead of the time that
// has passed here before it counts as a jump.
const clockTolerance = 10 * time.Second

// clock says what has reached its age. It goes by the database's clock, which
// the records are stamped by, and checks its course against this process's
// monotonic one, which can't be set.
//
// Invariant: what was written before the database's clock was set forward is not
// older than the time that has passed since. Until none of it is left, it is
// judged by old, the clock as it would have gone on; what was written after is
// judged by now. A clock that is set back only makes things last longer.
type clock struct {
	mu sync.Mutex
	// began and first are when the clock was read first, and the last revision
	// then: what is later is not older than the process knows it.
	began time.Time
	first int64
	// old is judged by up to revision jump; at is when it was read, by this
	// process's clock. jump is 0 where the database's clock has not jumped.
	old  time.Time
	at   time.Time
	jump int64
	// ahead is how much the database's clock is ahead of old.
	ahead time.Duration
}

// times are what ages are counted by; see clock.
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

// forget ends the distinction: nothing is left from before the jump.
func (c *clock) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.old, c.jump, c.ahead = c.old.Add(c.ahead), 0, 0
}

// oldest is the last revision that may have reached an age: what was written
// while this process looked on is younger than that.
func (c *clock) oldest(age time.Duration, state State, local time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if local.Sub(c.began) < age {
		return c.first
	}
	return state.Revision
}
