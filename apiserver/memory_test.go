package apiserver

import (
	"runtime/debug"
	"testing"
)

func TestMemoryIsGivenBackWhenWorkIsOver(t *testing.T) {
	var w workload
	w.done(1 << 30)
	at := uint64(1 << 30)
	for i, step := range []struct {
		allocates uint64
		found     load
	}{
		{100 << 10, usual}, // an idle server, which may be only about to begin
		{100 << 10, usual},
		{100 << 10, usual},
		{100 << 10, quiet},
		{50 << 20, busy}, // many requests
		{100 << 10, usual},
		{50 << 20, busy},
		{3 << 20, usual}, // some
		{100 << 10, usual},
		{100 << 10, usual},
		{100 << 10, usual},
		{100 << 10, over},  // none any more
		{100 << 10, quiet}, // given back already
		{3 << 20, usual},   // a request now and then is not worth it
		{100 << 10, usual},
		{100 << 10, usual},
		{100 << 10, usual},
		{100 << 10, quiet},
	} {
		at += step.allocates
		found := w.look(at)
		if found != step.found {
			t.Errorf("step %d: found %v, want %v", i, found, step.found)
		}
		if found == over {
			w.done(at)
		}
	}
	// An idle server works too, a little.
	for n := 0; w.look(at) != over; n++ {
		if at += 400 << 10; n > 1000 {
			t.Fatal("what an idle server leaves is never given back")
		}
	}
}

func TestGarbageIsCollectedAsOperatorsSay(t *testing.T) {
	before := debug.SetGCPercent(70)
	defer debug.SetGCPercent(before)
	told := func() int {
		percent := debug.SetGCPercent(70)
		debug.SetGCPercent(percent)
		return percent
	}
	t.Setenv("GOGC", "70")
	c := collector{usualPercent}
	c.set(busyPercent)
	if got := told(); got != 70 {
		t.Errorf("GOGC says 70, the collector was told %d", got)
	}
	t.Setenv("GOGC", "")
	c.set(busyPercent)
	if got := told(); got != busyPercent {
		t.Errorf("a busy server's collector was told %d", got)
	}
}

func TestAllocatedGrows(t *testing.T) {
	before := allocated()
	block := make([]byte, 8<<20)
	if got := allocated() - before; got < uint64(len(block)) {
		t.Errorf("8 MiB count as %d bytes", got)
	}
}
