package sqlstore

import (
	"context"
	"testing"
	"testing/synctest"
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
		got := c.compare(State{Revision: revision, Time: start.Add(step.ahead)}, local)
		if old := got.old.Sub(start); old != step.old || (got.jump > 0) != step.jump ||
			!got.now.Equal(start.Add(step.ahead)) {
			t.Errorf("step %d: %+v is %v ahead, want %+v", i, got, old, step)
		}
	}
}

// A reading that took long, wherever in that time the database told its own, is made again. Records of
// before a jump are then judged by the time of before, to the second.
func TestClock_LateReading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c clock
		for _, step := range []struct {
			ahead, asked, answered time.Duration
			jumped                 bool
		}{
			{0, 0, time.Hour, false},
			{0, time.Minute, 0, false},
			{0, 0, maxReading, false},
			{0, maxReading, 0, false},
			{time.Hour, time.Minute, 0, true},
			{time.Hour, 0, time.Minute, false},
			{time.Hour, time.Second, 0, false},
		} {
			reads := 0
			state, got, err := c.read(t.Context(), func(context.Context) (State, error) {
				if reads++; reads > 1 {
					return State{Revision: 1, Time: time.Now().Add(step.ahead)}, nil
				}
				time.Sleep(step.asked)
				told := time.Now().Add(step.ahead)
				time.Sleep(step.answered)
				return State{Revision: 1, Time: told}, nil
			})
			isLate := step.asked+step.answered > maxReading
			if err != nil || got.jumped != step.jumped || got.old.After(time.Now()) || isLate != (reads > 1) {
				t.Errorf("%+v: %+v after %d reads, at %v, %v", step, got, reads, time.Now(), err)
			}
			if isLate && (!state.Time.Equal(time.Now().Add(step.ahead)) || !got.now.Equal(state.Time)) {
				t.Errorf("%+v: the state is of %v, and the time %v", step, state.Time, got.now)
			}
		}
	})
}
