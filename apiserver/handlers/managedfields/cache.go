package managedfields

import "sync"

// cache is a map that holds at most limit bytes. It is safe for concurrent use.
//
// Invariant: recent and older together hold at most limit bytes. put keeps it: when
// recent has half of limit, recent becomes older and the previous older is dropped. get puts
// an entry of older again, so that entries that are in use stay.
type cache[K comparable, V any] struct {
	limit int
	// sizeOf returns the size of an entry in bytes.
	sizeOf func(K, V) int

	mu            sync.Mutex
	recent, older map[K]V
	size          int // of recent, in bytes
}

// entryOverhead is about what a map needs for an entry besides its key and value, in
// bytes.
const entryOverhead = 64

func newCache[K comparable, V any](limit int, sizeOf func(K, V) int) *cache[K, V] {
	return &cache[K, V]{limit: limit, sizeOf: sizeOf, recent: map[K]V{}}
}

func (c *cache[K, V]) get(key K) (value V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if value, ok = c.recent[key]; ok {
		return value, true
	}
	if value, ok = c.older[key]; ok {
		c.putLocked(key, value)
	}
	return value, ok
}

// put adds an entry. It does nothing if the entry takes more than half of limit.
func (c *cache[K, V]) put(key K, value V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(key, value)
}

func (c *cache[K, V]) putLocked(key K, value V) {
	size := c.sizeOf(key, value) + entryOverhead
	if _, ok := c.recent[key]; ok || size > c.limit/2 {
		return
	}
	if c.size+size > c.limit/2 {
		c.older, c.recent, c.size = c.recent, map[K]V{}, 0
	}
	c.recent[key] = value
	c.size += size
}
