package process

import (
	"math"
	"runtime/debug"
	"testing"
	"testing/fstest"
)

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
