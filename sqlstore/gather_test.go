package sqlstore

import (
	"testing"
	"time"
)

// A writer waits for a bounded time even if other writers keep arriving.
func TestQueue_GatherIsBoundedInTime(t *testing.T) {
	q, now, yields := newQueue(), time.Unix(0, 0), 0
	push := func() { q.push(&pending{}) }
	push()
	q.gather(1_000_000, func() time.Time { return now }, func() {
		yields++
		now = now.Add(time.Millisecond)
		push()
	})
	if most := int(gatherTime / time.Millisecond); yields == 0 || yields > most {
		t.Errorf("the writer waits for %d ms, want 1 to %d", yields, most)
	}
	// A writer that is alone yields once.
	q, yields = newQueue(), 0
	push()
	q.gather(1_000_000, func() time.Time { return now }, func() { yields++ })
	if yields != 1 {
		t.Errorf("the writer yields %d times while no write arrives, want once", yields)
	}
}
