package backup

import (
	"fmt"
	"math"
	"slices"
	"time"

	"byre/sqlstore"
)

// version is the version of the format; see doc.go.
const version = 2

// line is one line of a backup. Exactly one of its members is set.
type line struct {
	Header *header `json:"byre,omitempty"`
	Object *object `json:"object,omitempty"`
	Change *change `json:"change,omitempty"`
	End    *end    `json:"end,omitempty"`
}

type header struct {
	Version   int       `json:"version"`
	Program   string    `json:"program,omitempty"`
	Revision  int64     `json:"revision"`
	Compacted int64     `json:"compacted"`
	Epoch     string    `json:"epoch"`
	Cluster   string    `json:"cluster,omitempty"`
	Time      time.Time `json:"time"`
	Objects   int64     `json:"objects"`
	History   []kept    `json:"history,omitempty"`
}

// kept has the sqlstore.Retained of a resource.
type kept struct {
	sqlstore.Resource
	Compacted int64 `json:"compacted"`
	// RetainedFor is in seconds.
	RetainedFor int64 `json:"retainedFor,omitempty"`
}

// historyOf returns Header.Retained.
func historyOf(retained map[sqlstore.Resource]sqlstore.Retained) (all []kept) {
	for of, r := range retained {
		all = append(all, kept{of, r.Compacted, int64(r.RetainedFor / time.Second)})
	}
	slices.SortFunc(all, func(a, b kept) int { return a.Resource.Compare(b.Resource) })
	return all
}

// retained is the reverse of historyOf.
func (h *header) retained() (map[sqlstore.Resource]sqlstore.Retained, error) {
	retained := make(map[sqlstore.Resource]sqlstore.Retained)
	for _, r := range h.History {
		if r.Compacted < 0 || r.Compacted > h.Compacted || r.RetainedFor > math.MaxInt64/int64(time.Second) {
			return nil, fmt.Errorf("%w: history of %v from revision %d", sqlstore.ErrBroken, r.Resource, r.Compacted)
		}
		retained[r.Resource] = sqlstore.Retained{Compacted: r.Compacted, RetainedFor: time.Duration(max(r.RetainedFor, -1)) * time.Second}
	}
	return retained, nil
}

type object struct {
	sqlstore.ObjectRow
	Value string `json:"value"`
}

type change struct {
	sqlstore.ChangeRow
	Value string `json:"value,omitempty"`
}

type end struct {
	Objects int64  `json:"objects"`
	Changes int64  `json:"changes"`
	SHA256  string `json:"sha256"`
}

func objectOf(r *sqlstore.ObjectRow) *object { return &object{*r, sqlstore.Text(r.Value)} }

func (o *object) row() *sqlstore.ObjectRow {
	o.ObjectRow.Value = sqlstore.Bytes(o.Value)
	return &o.ObjectRow
}

func changeOf(r *sqlstore.ChangeRow) *change { return &change{*r, sqlstore.Text(r.Value)} }

func (c *change) row() *sqlstore.ChangeRow {
	if c.Value != "" {
		c.ChangeRow.Value = sqlstore.Bytes(c.Value)
	}
	return &c.ChangeRow
}
