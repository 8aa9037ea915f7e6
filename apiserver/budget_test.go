package apiserver

import (
	"math"
	"testing"
)

// Budgets are not negative on machines of 32 bits either, whatever the limit is: control groups
// of version 1 have one of almost 2^63 where there is none.
func TestBudgets_AreNotNegative(t *testing.T) {
	t.Parallel()
	for limit, state := range map[int64]int64{
		0: 0, 1 << 20: 1 << 18, 8 << 30: 2 << 30, 9223372036854771712: 9223372036854771712 / 4,
	} {
		if got := int64(stateBytes(limit)); got != min(state, math.MaxInt) {
			t.Errorf("of a limit of %d, the state gets %d", limit, got)
		}
		if got := representationBytes(0, limit); got < minRepresentationBytes || got > maxRepresentationBytes {
			t.Errorf("of a limit of %d, representations get %d", limit, got)
		}
	}
}
