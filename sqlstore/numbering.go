package sqlstore

// Numbering gives ids to the resources of a snapshot, for a driver that loads its rows.
type Numbering struct {
	header *Header
	ids    map[Resource]int64
}

// NewNumbering returns a Numbering of a snapshot with a header.
func NewNumbering(h *Header) *Numbering {
	return &Numbering{header: h, ids: make(map[Resource]int64)}
}

// ID returns the id of a resource: 1, 2 and so on, in the order of the first calls.
func (n *Numbering) ID(of Resource) int64 {
	id, ok := n.ids[of]
	if !ok {
		id = int64(len(n.ids) + 1)
		n.ids[of] = id
	}
	return id
}

// All calls yield with each resource, its id and its Retained.
func (n *Numbering) All(yield func(of Resource, id int64, r Retained) error) error {
	for of, id := range n.ids {
		if err := yield(of, id, n.header.RetainedOf(of)); err != nil {
			return err
		}
	}
	return nil
}
