package managedfields

// generations is a map that holds at most limit bytes.
//
// Invariant: recent and older together hold at most limit bytes. put keeps it: when
// recent has half of limit, recent becomes older and the previous older is dropped. A
// reader of an entry in older puts the entry again, so that entries that are in use
// stay.
type generations[K comparable, V any] struct {
	limit         int
	recent, older map[K]V
	size          int // the size of recent, in bytes
}

// entryOverhead is about what a map needs for an entry besides its key and value, in
// bytes.
const entryOverhead = 64

func newGenerations[K comparable, V any](limit int) generations[K, V] {
	return generations[K, V]{limit: limit, recent: map[K]V{}}
}

// put adds an entry whose key and value take size bytes. It does nothing if recent has
// the entry, or if the entry takes more than half of limit.
func (g *generations[K, V]) put(key K, value V, size int) {
	size += entryOverhead
	if _, ok := g.recent[key]; ok || size > g.limit/2 {
		return
	}
	if g.size+size > g.limit/2 {
		g.older, g.recent, g.size = g.recent, map[K]V{}, 0
	}
	g.recent[key] = value
	g.size += size
}
