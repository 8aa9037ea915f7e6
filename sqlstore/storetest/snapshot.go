package storetest

import (
	"context"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"byre/sqlstore"
)

// Rows is a whole Snapshot in memory.
type Rows struct {
	sqlstore.Header
	Objects []*sqlstore.ObjectRow
	Changes []*sqlstore.ChangeRow
}

// Collect reads a snapshot to its end.
func Collect(s sqlstore.Snapshot) (rows Rows, err error) {
	rows.Header = s.Header
	for row, err := range s.Objects {
		if err != nil {
			return rows, err
		}
		rows.Objects = append(rows.Objects, row)
	}
	for row, err := range s.Changes {
		if err != nil {
			return rows, err
		}
		rows.Changes = append(rows.Changes, row)
	}
	return rows, nil
}

// Snapshot returns a snapshot that yields the rows.
func (r Rows) Snapshot() sqlstore.Snapshot {
	return sqlstore.Snapshot{Header: r.Header, Objects: sequence(r.Objects), Changes: sequence(r.Changes)}
}

func sequence[T any](rows []*T) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		for _, row := range rows {
			if !yield(row, nil) {
				return
			}
		}
	}
}

// RandomRows returns the rows of a Model after random writes and a compaction. Some resources have
// a history that reaches back further.
func RandomRows(t testing.TB, random *rand.Rand) Rows {
	t.Helper()
	model := randomModel(t, random)
	all := model.rows().Changes
	f := fixture{TB: t, Driver: model}
	f.compact(random.Int64N(model.state.Revision + 1))
	rows := model.rows()
	// The history of some resources was kept for longer.
	rows.Retained = make(map[sqlstore.Resource]sqlstore.Retained)
	for of := range model.compacted {
		if random.IntN(3) == 0 && rows.Compacted > 0 {
			resumable := random.Int64N(rows.Compacted)
			rows.Retained[of] = sqlstore.Retained{ResumableAfter: resumable, CompleteAfter: random.Int64N(resumable + 1),
				RetainedFor: time.Duration(random.IntN(3)-1) * time.Second}
		}
	}
	rows.Changes = slices.DeleteFunc(all, func(c *sqlstore.ChangeRow) bool {
		return c.Revision <= rows.RetainedOf(c.Of()).CompleteAfter
	})
	return rows
}

// WholeRows returns the rows of a Model after random writes, with the whole history.
func WholeRows(t testing.TB, random *rand.Rand) Rows {
	t.Helper()
	return randomModel(t, random).rows()
}

// randomModel returns a Model after random writes.
func randomModel(t testing.TB, random *rand.Rand) *Model {
	t.Helper()
	model := NewModel()
	f := fixture{TB: t, Driver: model}
	w := walk{driver: f, model: f, random: random}
	for range rounds {
		keys := make(map[sqlstore.Key]bool)
		for range 1 + random.IntN(8) {
			k := w.key()
			if !keys[k] {
				keys[k] = true
				f.commit(w.writeOf(k))
			}
		}
	}
	return model
}

func (m *Model) lastCompleteAfter() (last int64) {
	for _, revision := range m.completeAfter {
		last = max(last, revision)
	}
	return last
}

// rows returns the rows that a database would have.
func (m *Model) rows() Rows {
	author := sqlstore.Author{User: "alice", RealUser: "bob", Verb: "update", Subresource: "status", Manager: "test"}
	rows := Rows{Header: sqlstore.Header{
		Revision: m.state.Revision, Compacted: m.state.Compacted, CompleteAfter: m.lastCompleteAfter(), Epoch: m.state.Epoch,
		Time: m.Clock().UTC().Truncate(time.Microsecond), ObjectCount: int64(len(m.current)),
	}}
	for _, c := range m.changes {
		row := &sqlstore.ChangeRow{
			Key: c.New.Key, Op: c.Op, Revision: c.Revision, Time: c.Time, Author: c.Author, UID: c.New.UID,
			Created: c.New.Created,
		}
		if c.Old != nil {
			row.UID, row.Replaces, row.Encoding, row.Expires, row.Value = c.Old.UID, c.Old.Revision, c.Old.Encoding,
				c.Old.Expires, c.Old.Value
		}
		rows.Changes = append(rows.Changes, row)
	}
	for _, k := range slices.SortedFunc(maps.Keys(m.current), sqlstore.Key.Compare) {
		rows.Objects = append(rows.Objects, &sqlstore.ObjectRow{
			Record: m.current[k], Time: time.Unix(1_700_000_000, 0).UTC(), Author: author,
			Generation: int64(len(k.Name)),
		})
	}
	histories, _ := m.Histories(context.Background()) // it does not fail
	rows.SetRetained(histories)
	return rows
}

// Breaks has functions that break Rows, by what is then wrong. The Rows must have no compacted changes.
var Breaks = map[string]func(*Rows){
	"no epoch":             func(r *Rows) { r.Epoch = "" },
	"compacted too high":   func(r *Rows) { r.Compacted = r.Revision + 1 },
	"complete too late":    func(r *Rows) { r.CompleteAfter = r.Compacted + 1 },
	"object missing":       func(r *Rows) { r.Objects = r.Objects[1:] },
	"object of the future": func(r *Rows) { r.Objects[0].Revision = r.Revision + 1 },
	"object without value": func(r *Rows) { r.Objects[0].Value = nil },
	"object with NUL":      func(r *Rows) { r.Objects[0].Value = []byte("\"\x00\"") },
	"object without name":  func(r *Rows) { r.Objects[0].Name = "" },
	"object without time":  func(r *Rows) { r.Objects[0].Time = time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC) },
	"object by nobody":     func(r *Rows) { r.Objects[0].Author.User = "\xff" },
	"change missing":       func(r *Rows) { r.Changes = slices.Delete(r.Changes, 1, 2) },
	"first change missing": func(r *Rows) { r.Changes = r.Changes[1:] },
	"last change missing":  func(r *Rows) { r.Changes = r.Changes[:len(r.Changes)-1] },
	"changes missing":      func(r *Rows) { r.Changes = nil },
	"change twice":         func(r *Rows) { r.Changes[1] = r.Changes[0] },
	"change of nothing":    func(r *Rows) { r.Changes[0].Op = "replace" },
	"change of the future": func(r *Rows) { r.Changes[0].Replaces = r.Revision },
	"change with NUL":      func(r *Rows) { r.Changes[0].Author.AuditID = "\x00" },
	"create with value": func(r *Rows) {
		r.Changes[0].Op, r.Changes[0].Replaces, r.Changes[0].Value = sqlstore.Create, 0, []byte(`1`)
	},
}

// WithoutKept returns the rows without compacted changes.
func (r Rows) WithoutKept() Rows {
	r.Changes = slices.DeleteFunc(r.Changes, func(c *sqlstore.ChangeRow) bool { return c.Revision <= r.Compacted })
	r.CompleteAfter, r.Retained = r.Compacted, nil
	return r
}
