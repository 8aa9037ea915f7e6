package managedfields

import (
	"fmt"
	"strings"
	"testing"
)

// TestCache_IsBounded: the cache drops unused entries and never holds more than its limit.
func TestCache_IsBounded(t *testing.T) {
	const limit = 10_000
	c := NewFieldSets(limit)
	c.put("used", "fields")
	for i := range 1_000 {
		c.put(fmt.Sprint("shape ", i), "fields")
		if fields, ok := c.get("used"); !ok || fields != "fields" {
			t.Fatalf("what is used was dropped after %d others", i)
		}
		size := 0
		for _, part := range []map[string]string{c.recent, c.older} {
			for shape, fields := range part {
				size += len(shape) + len(fields) + entryOverhead
			}
		}
		if size > limit {
			t.Fatalf("%d bytes", size)
		}
	}
	if _, ok := c.get("shape 0"); ok {
		t.Error("what is not used is still there")
	}
	large := strings.Repeat("x", limit)
	c.put(large, "fields")
	if _, ok := c.get(large); ok {
		t.Error("an entry larger than the cache was kept")
	}
}
