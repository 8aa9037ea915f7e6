package managedfields

import "sync"

// Cache holds field sets by kind and shape, up to a number of bytes. It is safe for
// concurrent use.
type Cache struct {
	mu   sync.Mutex
	sets generations[string, string]
}

// NewCache returns an empty cache of at most limit bytes.
func NewCache(limit int) *Cache { return &Cache{sets: newGenerations[string, string](limit)} }

// get returns the fields of a shape, and does not keep the slice. It looks up the maps
// here, and not in a method of generations, because the compiler converts a slice to a
// key without a copy only in an index expression.
func (c *Cache) get(shape []byte) (fields string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if fields, ok = c.sets.recent[string(shape)]; ok {
		return fields, true
	}
	if fields, ok = c.sets.older[string(shape)]; ok {
		c.putLocked(string(shape), fields)
	}
	return fields, ok
}

func (c *Cache) put(shape []byte, fields string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(string(shape), fields)
}

func (c *Cache) putLocked(shape, fields string) { c.sets.put(shape, fields, len(shape)+len(fields)) }
