package managedfields

import (
	"fmt"
	"testing"
)

// TestCache_IsBounded: the cache drops unused entries and never holds more than its limit.
func TestCache_IsBounded(t *testing.T) {
	const limit = 10_000
	c := NewCache(limit)
	c.put([]byte("used"), "fields")
	for i := range 1_000 {
		c.put(fmt.Appendf(nil, "shape %d", i), "fields")
		if fields, ok := c.get([]byte("used")); !ok || fields != "fields" {
			t.Fatalf("what is used was dropped after %d others", i)
		}
		size := 0
		for _, part := range []map[string]string{c.sets.recent, c.sets.older} {
			for shape, fields := range part {
				size += len(shape) + len(fields) + entryOverhead
			}
		}
		if size > limit {
			t.Fatalf("%d bytes", size)
		}
	}
	if _, ok := c.get([]byte("shape 0")); ok {
		t.Error("what is not used is still there")
	}
	c.put(make([]byte, limit), "fields")
	if _, ok := c.get(make([]byte, limit)); ok {
		t.Error("an entry larger than the cache was kept")
	}
}
