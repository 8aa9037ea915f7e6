package query

import (
	"slices"

	"byre/apiserver/storage/jsontext"
)

// extractor finds the values of several columns in one pass over an object's JSON.
type extractor struct {
	root    node
	columns int // how many there are
}

// node is a member on the paths of columns.
type node struct {
	name     string
	columns  []int
	children []*node
}

// add makes find look for a column's path.
func (x *extractor) add(column int, path []string) {
	at := &x.root
	for _, name := range path {
		at = at.child(name)
	}
	at.columns = append(at.columns, column)
	x.columns++
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

// find sets the JSON of each added column in values, by the column's number. It does not change what
// is there for a column that the object lacks. data must be valid JSON, and the values share its
// memory.
func (x *extractor) find(data []byte, values [][]byte) {
	scanner := jsontext.NewScanner(data, 0)
	left := x.columns
	x.root.find(data, &scanner, values, &left)
}

// find reads the members at the scanner's position up to the end of the object, or until left, the
// number of values that are not found yet, is 0.
func (n *node) find(data []byte, s *jsontext.Scanner, values [][]byte, left *int) {
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
		for _, column := range member.columns {
			values[column] = data[start:s.Pos]
			*left--
		}
	}
}
