package sqlstore

import (
	"testing"
	"time"
)

// Each step is one reading of the clocks: the time that has passed in this process since the
// last step, how far the database's clock is ahead of the right time, how far ahead the time is
// by which records from before the jump are judged, whether there is a jump, and how long the
// answer took to arrive.
func TestClock_FollowsTheDatabase(t *testing.T) {
	var c clock
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	local, revision := time.Now(), int64(100)
	for i, step := range []struct {
		passed, ahead, old time.Duration // old: how far ahead of the right time
		jump               bool
		late               time.Duration
	}{
		{0, 0, 0, false, 0},
		{time.Minute, time.Second, time.Second, false, 0}, // slewed
		{time.Minute, 0, 0, false, 0},
		{time.Minute, 0, 0, false, time.Minute},
		{2 * time.Minute, 0, 0, false, 0},
		{time.Second, time.Hour, 0, true, time.Second},
		{time.Minute, time.Hour, 0, true, 0},
		{time.Second, 3 * time.Hour, 0, true, 0}, // a second jump
		{time.Second, 2 * time.Hour, 0, true, 0}, // a jump partly back
		{time.Second, 0, 0, false, 0},            // correct again
		{time.Second, -time.Hour, -time.Hour, false, 0},
		{time.Second, 0, -time.Hour, true, 0}, // records of the time in between are stamped an hour early
	} {
		local, revision = local.Add(step.passed), revision+1
		start = start.Add(step.passed)
		got := c.read(State{Revision: revision, Time: start.Add(step.ahead)}, local, local.Add(step.late))
		if old := got.old.Sub(start); old != step.old || (got.jump > 0) != step.jump || !got.now.Equal(start.Add(step.ahead)) {
			t.Errorf("step %d: %+v is %v ahead, want %+v", i, got, old, step)
		}
	}
	c.forget()
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
