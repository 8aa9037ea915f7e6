package instances

import (
	"errors"
	"testing"
)

func TestLazy_KeepsWhatIsUsed(t *testing.T) {
	t.Parallel()
	made, failing := 0, true
	l := newLazy(func() (int, error) {
		if failing {
			return 0, errors.New("not now")
		}
		made++
		return made, nil
	})
	if _, err := l.get(); err == nil {
		t.Error("no error")
	}
	failing = false
	for i, step := range []struct {
		before func()
		want   int
	}{
		{func() {}, 1},                           // made again after the failure
		{l.release, 1},                           // kept, because it was used
		{func() { l.release(); l.release() }, 2}, // released, and made again
		{func() {}, 2},                           // kept
	} {
		step.before()
		if got, err := l.get(); err != nil || got != step.want {
			t.Errorf("step %d: %d, %v; want %d", i, got, err, step.want)
		}
	}
}
