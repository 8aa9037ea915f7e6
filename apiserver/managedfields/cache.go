package managedfields

import "sync"

// entryOverhead is about what an entry of a map takes beside its key and value.
const entryOverhead = 64

// Cache holds field sets by kind and shape, up to a number of bytes. It is safe for
// concurrent use.
//
// Invariant: recent and older together hold at most limit bytes. put keeps it: once
// recent has half of them it becomes older, and what was older is dropped. A set that is
// used moves to recent, so that what is in use stays.
type Cache struct {
	limit int

	mu            sync.Mutex
	recent, older map[string]string
	size          int // of recent, in bytes
}

// NewCache returns an empty cache of at most limit bytes.
func NewCache(limit int) *Cache {
	return &Cache{limit: limit, recent: map[string]string{}}
}

// get does not keep the shape.
func (c *Cache) get(shape []byte) (fields string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if fields, ok = c.recent[string(shape)]; ok {
		return fields, true
	}
	if fields, ok = c.older[string(shape)]; ok {
		c.putLocked(string(shape), fields)
	}
	return fields, ok
}

func (c *Cache) put(shape []byte, fields string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(string(shape), fields)
}

func (c *Cache) putLocked(shape, fields string) {
	size := len(shape) + len(fields) + entryOverhead
	if size > c.limit/2 {
		return
	}
	if _, ok := c.recent[shape]; ok {
		return
	}
	if c.size+size > c.limit/2 {
		c.older, c.recent, c.size = c.recent, map[string]string{}, 0
	}
	c.recent[shape] = fields
	c.size += size
}
