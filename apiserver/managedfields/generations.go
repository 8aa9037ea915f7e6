package managedfields

// generations is a map of at most limit bytes.
//
// Invariant: recent and older together hold at most limit bytes. put keeps it: once
// recent has half of them it becomes older, and what was older is dropped. Who reads an
// entry of older puts it again, so that what is in use stays.
type generations[K comparable, V any] struct {
	limit         int
	recent, older map[K]V
	size          int // of recent, in bytes
}

// entryOverhead is about what an entry of a map takes beside its key and value.
const entryOverhead = 64

func newGenerations[K comparable, V any](limit int) generations[K, V] {
	return generations[K, V]{limit: limit, recent: map[K]V{}}
}

// put adds an entry whose key and value take so many bytes, unless it is in recent or takes
// more than half of the limit.
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
