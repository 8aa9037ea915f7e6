package apiserver

import "testing"

func TestMemoryIsGivenBackWhenWorkIsOver(t *testing.T) {
	var w workload
	w.done(1 << 30)
	at := uint64(1 << 30)
	for i, step := range []struct {
		allocates uint64
		over      bool
	}{
		{1 << 20, false},   // an idle server
		{100 << 20, false}, // busy
		{50 << 20, false},  // still
		{1 << 20, true},    // no more
		{1 << 20, false},   // given back already
		{3 << 20, false},   // a request now and then is not worth it
		{1 << 20, false},
	} {
		at += step.allocates
		over := w.over(at)
		if over != step.over {
			t.Errorf("step %d: over is %v", i, over)
		}
		if over {
			w.done(at)
		}
	}
	// An idle server works too, a little.
	for n := 0; !w.over(at); n++ {
		if at += 1 << 20; n > 100 {
			t.Fatal("what an idle server leaves is never given back")
		}
	}
}

func TestAllocatedGrows(t *testing.T) {
	before := allocated()
	block := make([]byte, 8<<20)
	if got := allocated() - before; got < uint64(len(block)) {
		t.Errorf("8 MiB count as %d bytes", got)
	}
}
