package sqlstore

// Numbering gives ids to the resources of a snapshot, for a driver that loads its rows.
type Numbering struct {
	header *Header
	ids    map[Resource]int64
	// first has the first change of each resource up to header.Compacted.
	first map[Resource]int64
}

// NewNumbering returns a Numbering of a snapshot with a header.
func NewNumbering(h *Header) *Numbering {
	return &Numbering{header: h, ids: make(map[Resource]int64), first: make(map[Resource]int64)}
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

// ChangeID is ID of the resource of a change. The changes come in the order of their revisions.
func (n *Numbering) ChangeID(r *ChangeRow) int64 {
	of := r.Of()
	if _, ok := n.first[of]; !ok && r.Revision <= n.header.Compacted {
		n.first[of] = r.Revision
	}
	return n.ID(of)
}

// All calls yield with each resource, its id and its Retained. Backups of version 1 do
// not have that: Compacted is then the revision before the first change that is left.
func (n *Numbering) All(yield func(of Resource, id int64, r Retained) error) error {
	for of, id := range n.ids {
		retained := n.header.RetainedOf(of)
		if first, ok := n.first[of]; ok && retained.Compacted == n.header.Compacted {
			retained.Compacted = first - 1
		}
		if err := yield(of, id, retained); err != nil {
			return err
		}
	}
	return nil
}
