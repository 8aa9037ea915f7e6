package process

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"testing/fstest"
	"time"
)

func TestMemory_ReturnedWhenIdle(t *testing.T) {
	var w workload
	w.released(1 << 30)
	at := uint64(1 << 30)
	for i, step := range []struct {
		allocates uint64
		found     load
	}{
		{100 << 10, calm}, // an idle server, which may be about to get requests
		{100 << 10, calm},
		{100 << 10, calm},
		{100 << 10, calm},
		{50 << 20, busy}, // many requests
		{100 << 10, calm},
		{50 << 20, busy},
		{3 << 20, calm}, // some
		{100 << 10, calm},
		{100 << 10, calm},
		{100 << 10, calm},
		{100 << 10, burstOver}, // no requests any more
		{100 << 10, calm},      // the memory was given back already
		{3 << 20, calm},        // an occasional request
		{100 << 10, calm},
		{100 << 10, calm},
		{100 << 10, calm},
		{100 << 10, calm},
	} {
		at += step.allocates
		found := w.observe(at, 20<<20)
		if found != step.found {
			t.Errorf("step %d: found %v, want %v", i, found, step.found)
		}
		if found == burstOver {
			w.released(at)
		}
	}
	// An idle server allocates a little too.
	for n := 0; w.observe(at, 20<<20) != burstOver; n++ {
		if at += 400 << 10; n > 1000 {
			t.Fatal("what an idle server leaves is never given back")
		}
	}
}

// TestLeastGrowth_IsWhatASteadyLoadAllocates: under a steady load there are steadyTime between two
// collections, and a server without requests goes back to the least growth.
func TestLeastGrowth_IsWhatASteadyLoadAllocates(t *testing.T) {
	const aSecond = 4 << 20
	var w workload
	at := uint64(1 << 30)
	w.released(at)
	observe := func(d time.Duration, aSecond uint64) {
		for range d / observeInterval {
			at += aSecond / uint64(time.Second/observeInterval)
			w.observe(at, 20<<20)
		}
	}
	if got := w.leastGrowth(steadyGrowth); got != minGrowth {
		t.Errorf("%d bytes before any load", got)
	}
	observe(10*steadyTime, aSecond)
	want := aSecond * uint64(steadyTime/time.Second)
	if got := w.leastGrowth(steadyGrowth); got < want*99/100 || got > want*101/100 {
		t.Errorf("%d bytes under a steady load, want %d", got, want)
	}
	observe(steadyTime, 100*aSecond)
	if got := w.leastGrowth(steadyGrowth); got != steadyGrowth {
		t.Errorf("%d bytes after a burst, want %d", got, uint64(steadyGrowth))
	}
	observe(10*steadyTime, 0)
	if got := w.leastGrowth(steadyGrowth); got != minGrowth {
		t.Errorf("%d bytes after the load, want %d", got, uint64(minGrowth))
	}
	observe(steadyTime, aSecond)
	w.released(at)
	if got := w.leastGrowth(steadyGrowth); got != minGrowth {
		t.Errorf("%d bytes after a release, want %d", got, uint64(minGrowth))
	}
}

func TestMemory_RespectsGOGC(t *testing.T) {
	before := debug.SetGCPercent(70)
	defer debug.SetGCPercent(before)
	currentPercent := func() int {
		percent := debug.SetGCPercent(70)
		debug.SetGCPercent(percent)
		return percent
	}
	t.Setenv("GOGC", "70")
	c := gcPercent{defaultPercent}
	c.set(busyPercent)
	if got := currentPercent(); got != 70 {
		t.Errorf("GOGC says 70, the collector was told %d", got)
	}
	t.Setenv("GOGC", "")
	c.set(busyPercent)
	if got := currentPercent(); got != busyPercent {
		t.Errorf("a busy server's collector was told %d", got)
	}
}

func TestAllocated_Grows(t *testing.T) {
	before := allocated()
	block := make([]byte, 8<<20)
	if got := allocated() - before; got < uint64(len(block)) {
		t.Errorf("8 MiB count as %d bytes", got)
	}
}

// TestPercent_IsHowTheRuntimeGrowsTheHeap: between two collections the heap grows by GOGC
// percent of heap.live.
func TestPercent_IsHowTheRuntimeGrowsTheHeap(t *testing.T) {
	const percent = 50
	defer debug.SetGCPercent(debug.SetGCPercent(percent))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	block := make([]byte, 64<<20)
	runtime.GC()
	h := readHeap()
	samples := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples)
	runtime.KeepAlive(block)
	growth, want := float64(samples[0].Value.Uint64()-samples[1].Value.Uint64()), float64(h.live)*percent/100
	if math.Abs(growth-want) > want/10 {
		t.Errorf("the heap grows by %.0f bytes, want %.0f", growth, want)
	}
}

// The heap grows by a percentage of what the collector scans, not of everything that is
// live.
func TestPercent_FollowsWhatIsScanned(t *testing.T) {
	for name, c := range map[string]struct {
		h           heap
		of, percent int
		least       uint64
	}{
		"nothing known":            {heap{}, busyPercent, busyPercent, minGrowth},
		"all is scanned":           {heap{live: 100 << 20, scanned: 100 << 20}, busyPercent, busyPercent, busyGrowth},
		"a tenth is scanned":       {heap{live: 1000 << 20, scanned: 100 << 20}, busyPercent, 20, busyGrowth},
		"hardly anything":          {heap{live: 1000 << 20, scanned: 1 << 20}, busyPercent, minPercent, minGrowth},
		"the least growth":         {heap{live: 64 << 20, scanned: 8 << 20}, defaultPercent, 50, minGrowth},
		"that of the busy":         {heap{live: 256 << 20, scanned: 30 << 20}, busyPercent, 50, busyGrowth},
		"a small heap":             {heap{live: 20 << 20, scanned: 8 << 20}, defaultPercent, 160, minGrowth},
		"a small heap of the busy": {heap{live: 16 << 20, scanned: 8 << 20}, busyPercent, maxPercent, busyGrowth},
	} {
		if got := c.h.percent(c.of, c.least); got != c.percent {
			t.Errorf("%s: %d, want %d", name, got, c.percent)
		}
	}
	for limit, want := range map[int64]uint64{0: busyGrowth, 128 << 20: minGrowth, 512 << 20: 64 << 20,
		8 << 30: busyGrowth} {
		if got := within(limit, busyGrowth); got != want {
			t.Errorf("with a limit of %d bytes a busy heap grows by %d, want %d", limit, got, want)
		}
	}
	if h := readHeap(); h.live < h.scanned {
		t.Errorf("%d bytes are scanned of %d", h.scanned, h.live)
	}
}

func TestCgroupLimit_ReadsTheSmallestOfTheHierarchy(t *testing.T) {
	root := fstest.MapFS{
		"sys/fs/cgroup/kubepods/memory.max":                  {Data: []byte("2000000000\n")},
		"sys/fs/cgroup/kubepods/pod1/memory.max":             {Data: []byte("1000000000\n")},
		"sys/fs/cgroup/kubepods/pod1/byre/memory.max":        {Data: []byte("max\n")},
		"sys/fs/cgroup/memory/memory.limit_in_bytes":         {Data: []byte("9223372036854771712\n")},
		"sys/fs/cgroup/memory/docker/memory.limit_in_bytes":  {Data: []byte("500000000\n")},
		"sys/fs/cgroup/elsewhere/but/deeper/memory.max":      {Data: []byte("1\n")},
		"sys/fs/cgroup/memory/other/memory.limit_in_bytes":   {Data: []byte("1\n")},
		"sys/fs/cgroup/memory/broken/memory.limit_in_bytes":  {Data: []byte("much\n")},
		"sys/fs/cgroup/memory/nothing/memory.limit_in_bytes": {Data: []byte("-1\n")},
	}
	const unlimited = 9223372036854771712 // how version 1 says it
	for groups, want := range map[string]int64{
		"0::/kubepods/pod1/byre\n":                        1_000_000_000,
		"0::/kubepods\n":                                  2_000_000_000,
		"0::/\n":                                          math.MaxInt64,
		"9:cpu:/\n4:memory:/docker/abc\n0::/\n":           500_000_000,
		"4:hugetlb,memory:/docker\n":                      500_000_000,
		"4:memory:/a/host/path/of/which/nothing/is/seen ": unlimited,
		"4:memory:/broken\n":                              unlimited,
		"4:memory:/nothing\n":                             unlimited,
		"":                                                math.MaxInt64,
		"nonsense\n":                                      math.MaxInt64,
	} {
		if got := groupLimit(root, groups); got != want {
			t.Errorf("%q: %d, want %d", groups, got, want)
		}
	}
}

func TestMemoryLimit_RespectsGOMEMLIMIT(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(1 << 20))
	if limit := MemoryLimit(); limit != 1<<20 {
		t.Errorf("the limit is %d", limit)
	}
}
