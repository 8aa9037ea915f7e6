package sqlstore

import (
	"testing"
	"time"
)

// Each step is one reading of the clocks: the time that has passed in this process since the
// last step, how far the database's clock is ahead of the right time, and how far ahead the
// time is by which records from before the jump are judged.
func TestClock_FollowsTheDatabase(t *testing.T) {
	var c clock
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	local, revision := time.Now(), int64(100)
	for i, step := range []struct {
		passed, ahead, old time.Duration // old: how far ahead of the right time
		jump               bool
	}{
		{0, 0, 0, false},
		{time.Minute, time.Second, time.Second, false}, // slewed
		{time.Minute, 0, 0, false},
		{time.Second, time.Hour, 0, true},
		{time.Minute, time.Hour, 0, true},
		{time.Second, 3 * time.Hour, 0, true}, // a second jump
		{time.Second, 2 * time.Hour, 0, true}, // a jump partly back
		{time.Second, 0, 0, false},            // correct again
		{time.Second, -time.Hour, -time.Hour, false},
		{time.Second, 0, -time.Hour, true}, // records of the time in between are stamped an hour early
	} {
		local, revision = local.Add(step.passed), revision+1
		start = start.Add(step.passed)
		got := c.read(State{Revision: revision, Time: start.Add(step.ahead)}, local, local)
		if old := got.old.Sub(start); old != step.old || (got.jump > 0) != step.jump || !got.now.Equal(start.Add(step.ahead)) {
			t.Errorf("step %d: %+v is %v ahead, want %+v", i, got, old, step)
		}
	}
	c.forget(c.jump - 1)
	if c.jump == 0 {
		t.Error("another jump was forgotten")
	}
	c.forget(c.jump)
	local = local.Add(time.Second)
	if got := c.read(State{Revision: revision, Time: start.Add(time.Second)}, local, local); got.jump != 0 || !got.old.Equal(got.now) {
		t.Errorf("after the last of the older records: %+v", got)
	}
	if got := c.oldest(time.Hour, State{Revision: revision}, local); got != 101 {
		t.Errorf("revision %d can be an hour old, want 101 at most", got)
	}
	if got := c.oldest(time.Minute, State{Revision: revision}, local); got != revision {
		t.Errorf("revision %d can be a minute old, want %d", got, revision)
	}
}

// A reading that took long, wherever in that time the database told its own, is not compared,
// and what is read next is compared as if there had been no such reading. Records of before a
// jump are then judged by the time of before, to the second.
func TestClock_LateReading(t *testing.T) {
	t.Parallel()
	right, local := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), time.Now()
	var c clock
	// read reads a clock that is ahead of the right time. The reading takes two times; the
	// database tells the time between them.
	read := func(ahead, asked, answered time.Duration) times {
		before := local
		told := right.Add(asked)
		local, right = local.Add(asked+answered), told.Add(answered)
		return c.read(State{Revision: 1, Time: told.Add(ahead)}, before, local)
	}
	if got := read(0, 0, time.Hour); got.jump != 0 || got.old.After(right) {
		t.Errorf("a first reading that is late: %+v", got)
	}
	for _, step := range []struct {
		ahead, asked, answered time.Duration
		jumped                 bool
	}{
		{0, 0, 0, false},
		{0, time.Minute, 0, false},
		{0, 0, time.Minute, false},
		{0, 0, maxReading, false},
		{0, maxReading, 0, false},
		{0, 0, 0, false},
		{time.Hour, time.Minute, 0, false}, // not known yet
		{time.Hour, 0, 0, true},
		{time.Hour, 0, time.Minute, false},
		{time.Hour, time.Minute, 0, false},
		{time.Hour, time.Second, 0, false},
	} {
		got := read(step.ahead, step.asked, step.answered)
		if got.jumped != step.jumped || got.old.After(right) {
			t.Errorf("%+v: %+v, at %v", step, got, right)
		}
	}
	if got := read(-time.Hour, 0, time.Minute); got.now.After(right.Add(-time.Hour)) || got.old.After(got.now) {
		t.Errorf("what is written after the clock was set back expires early: %+v at %v", got, right)
	}
	if got := read(time.Hour, 0, 0); got.jump != 1 || !got.old.Equal(right) || !got.now.Equal(right.Add(time.Hour)) {
		t.Errorf("%+v, want %v and an hour later", got, right)
	}
}
