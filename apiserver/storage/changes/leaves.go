package changes

import (
	"slices"

	"byre/apiserver/storage/transcode"
)

// Leaf is a field of an object that has no fields below it. Value is JSON.
type Leaf struct{ Path, Value string }

// Leaves are the fields of an object whose last change is not found yet. One goroutine uses them.
type Leaves struct {
	comparison
	root *leafNode
	// taken are those that a comparison has found.
	taken []Leaf
}

// leafNode is a value of the object. It has a leaf, or else the values in it by the texts of their parts.
type leafNode struct {
	leaf  *Leaf
	parts map[string]*leafNode
}

// NewLeaves returns the leaves of an object, but for what every write changes. shown is the object as its values are
// shown: the object itself, or a masked one. Both are JSON.
func NewLeaves(object, shown []byte, types Types) *Leaves {
	l := &Leaves{comparison: comparison{types: types, anyOrder: true}, root: &leafNode{}}
	l.kind = kindOf(Fields(object))
	l.add(l.root, object, shown)
	l.yield = l.take
	return l
}

// add adds the leaves of a value at the path to its node.
func (l *Leaves) add(to *leafNode, value, shown []byte) {
	part := func(p Part, value, shown []byte) {
		if to.parts == nil {
			to.parts = map[string]*leafNode{}
		}
		node := &leafNode{}
		to.parts[p.text(len(p.Name))] = node
		l.path = append(l.path, p)
		l.add(node, value, shown)
		l.path = l.path[:len(l.path)-1]
	}
	switch {
	case len(l.path) == mostDepth:
	case value[0] == '{':
		values := Fields(shown)
		for name, field := range Fields(value) {
			if !isOfEachWrite(l.path, name) {
				part(Field(name), field, values[name])
			}
		}
	case value[0] == '[':
		elements, values := slices.Collect(transcode.Elements(value)), slices.Collect(transcode.Elements(shown))
		_, names := l.typeHere().Keys(elements)
		for i, element := range elements {
			p := Part{Index: i}
			if names != nil {
				p.Name = names[i]
			}
			part(p, element, values[i])
		}
	}
	if to.parts == nil && len(l.path) > 0 {
		to.leaf = &Leaf{l.path.String(), valueText(shown)}
	}
}

// Take removes the leaves that differ between two versions of the object, and returns them. Later versions were taken
// before. A nil version before takes all that are left.
func (l *Leaves) Take(before, after []byte) []Leaf {
	l.taken = nil
	if before == nil {
		l.takeAll(l.root)
		return l.taken
	}
	l.compare(before, after)
	return l.taken
}

// Left reports whether there are leaves.
func (l *Leaves) Left() bool { return l.root.leaf != nil || len(l.root.parts) > 0 }

// take takes the leaves at the path of a difference, or the empty object or list around it.
func (l *Leaves) take(d *Difference) bool {
	node, above := l.root, make([]*leafNode, 0, len(d.path))
	for _, p := range d.path {
		next := node.parts[p.text(len(p.Name))]
		if next == nil {
			if node.leaf == nil {
				return true // taken before, or gone
			}
			break
		}
		above = append(above, node)
		node = next
	}
	l.takeAll(node)
	for i, parent := range slices.Backward(above) {
		delete(parent.parts, d.path[i].text(len(d.path[i].Name)))
		if len(parent.parts) > 0 {
			break
		}
	}
	return l.Left()
}

func (l *Leaves) takeAll(node *leafNode) {
	if node.leaf != nil {
		l.taken = append(l.taken, *node.leaf)
	}
	for _, part := range node.parts {
		l.takeAll(part)
	}
	node.leaf, node.parts = nil, nil
}
