package transcode

import "slices"

// Extractor finds the values at several paths in one pass over an object's JSON. The zero value finds none.
type Extractor struct {
	root  node
	paths int // how many there are
}

// node is a member on the paths.
type node struct {
	name     string
	indexes  []int
	children []*node
}

// Add makes Find look for a path, whose value becomes the one at an index of values.
func (x *Extractor) Add(index int, path []string) {
	at := &x.root
	for _, name := range path {
		at = at.child(name)
	}
	at.indexes = append(at.indexes, index)
	x.paths++
}

func (n *node) child(name string) *node {
	for _, c := range n.children {
		if c.name == name {
			return c
		}
	}
	c := &node{name: name}
	n.children = append(n.children, c)
	return c
}

// Find sets the JSON at each path in values. It does not change what is there for a path that the object lacks.
// data must be valid JSON, and the values share its memory.
func (x *Extractor) Find(data []byte, values [][]byte) {
	scanner := NewScanner(data, 0)
	left := x.paths
	x.root.find(data, &scanner, values, &left)
}

// find reads the members at the scanner's position up to the end of the object, or until left, the
// number of values that are not found yet, is 0.
func (n *node) find(data []byte, s *Scanner, values [][]byte, left *int) {
	for *left > 0 && s.NextMember() {
		key := s.ReadKey()
		i := slices.IndexFunc(n.children, func(c *node) bool { return string(key) == c.name })
		if i < 0 {
			s.SkipValue()
			continue
		}
		member, start := n.children[i], s.Pos
		if len(member.children) > 0 && s.NextIs('{') {
			member.find(data, s, values, left)
			if *left == 0 {
				return
			}
			if s.NextIs('}') {
				s.Pos++
			}
		} else {
			s.SkipValue()
		}
		for _, index := range member.indexes {
			values[index] = data[start:s.Pos]
			*left--
		}
	}
}
