package sqlstore

import (
	"testing"
	"time"
)

// A writer waits for a bounded time even if other writers keep arriving.
func TestQueue_GatherIsBoundedInTime(t *testing.T) {
	q, now, turns := newQueue(), time.Unix(0, 0), 0
	arrive := func() { q.push(&pending{}) }
	arrive()
	q.gather(1_000_000, func() time.Time { return now }, func() {
		turns++
		now = now.Add(time.Millisecond)
		arrive()
	})
	if most := int(gatherTime / time.Millisecond); turns == 0 || turns > most {
		t.Errorf("it waits for %d ms", turns)
	}
	// A writer that is alone waits for no more than one turn of the others.
	q, turns = newQueue(), 0
	arrive()
	q.gather(1_000_000, func() time.Time { return now }, func() { turns++ })
	if turns != 1 {
		t.Errorf("it waits for %d turns, and nobody comes", turns)
	}
}
