package server

import (
	"math"
	"runtime"
	"testing"

	"byre/apiserver/process"
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
	}
	for _, c := range []struct{ flag, limit, machine, want int64 }{
		{5, 1 << 40, 1 << 40, 5},
		{0, 0, 0, 64 << 20},
		{0, 1 << 30, 1 << 40, 64 << 20},
		{0, 1 << 35, 1 << 40, 1 << 30},
		{0, 9223372036854771712, 1 << 35, 1 << 30},
		{0, 0, 1 << 35, 1 << 30},
		{0, 1 << 35, 0, 1 << 30},
	} {
		if got := representationBytes(c.flag, c.limit, c.machine); got != c.want {
			t.Errorf("%v: representations get %d", c, got)
		}
	}
	if process.MachineMemory() < 1<<26 && runtime.GOOS == "linux" {
		t.Errorf("the machine has %d bytes", process.MachineMemory())
	}
}
