package query

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// A query that has run out of memory, or of time, gives back what it has taken.
func TestLimits_MemoryIsGivenBack(t *testing.T) {
	f := newFixture(t)
	for i := range 50 {
		f.pod("a", fmt.Sprint("p", i), "n")
	}
	f.config.Memory, f.config.Timeout = 32<<20, 5*time.Second
	bomb := "WITH RECURSIVE r(n, s) AS (SELECT 1, zeroblob(100000) UNION ALL SELECT n + 1, zeroblob(100000) FROM r) SELECT count(DISTINCT s || n) FROM r"
	statements := []string{bomb, "SELECT group_concat(hex(zeroblob(3000000))) FROM pods", "SELECT 1; " + bomb, "SELECT x", "SELECT zeroblob(20000000)"}
	before := residentBytes(t)
	for range 20 {
		for _, sql := range statements {
			if _, err := f.ask("admin", sql); err == nil {
				t.Errorf("%s was answered", sql)
			}
		}
	}
	if after := residentBytes(t); after > before+10*f.config.Memory {
		t.Errorf("the process takes %d MiB, and %d before", after>>20, before>>20)
	}
}

// residentBytes is the memory of the process that is in use.
func residentBytes(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}
