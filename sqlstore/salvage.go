package sqlstore

import (
	"errors"
	"fmt"
	"iter"
)

// DamagedRow is the error of one row, or of rows beside each other, that can't be read. A
// sequence of a Snapshot that yields it goes on after it.
type DamagedRow struct {
	Finding
	// Key is the row's key; zero if nothing that can be read tells it.
	Key Key
	// Revision is that of a change, or of the last one of several; 0 for an object.
	Revision int64
}

// Error implements error.
func (e *DamagedRow) Error() string { return e.String() }

// Salvage returns what another store can hold of a snapshot whose sequences may yield DamagedRows.
// It leaves out those and the rows that no store can have, and calls report for each. Where a
// change is left out or is missing, it leaves out the history up to it. It reads both sequences
// before it returns.
func (s Snapshot) Salvage(report func(Finding)) (Snapshot, error) {
	header, objects, changes := s.Header, s.Objects, s.Changes
	soundObjects := func(skip func(*DamagedRow)) iter.Seq2[*ObjectRow, error] {
		return soundRows(objects, skip, func(r *ObjectRow) *DamagedRow {
			if err := r.check(header); err != nil {
				return &DamagedRow{Finding{"objects: " + r.Display(), err.Error()}, r.Key, 0}
			}
			return nil
		})
	}
	soundChanges := func(skip func(*DamagedRow)) iter.Seq2[*ChangeRow, error] {
		return soundRows(changes, skip, func(r *ChangeRow) *DamagedRow {
			if err := r.check(header, r.Revision-1); err != nil {
				return &DamagedRow{Finding{fmt.Sprintf("changes: revision %d, %s", r.Revision, r.Display()), err.Error()}, r.Key, r.Revision}
			}
			return nil
		})
	}
	s.ObjectCount = 0
	for _, err := range soundObjects(func(d *DamagedRow) { report(d.Finding) }) {
		if err != nil {
			return Snapshot{}, err
		}
		s.ObjectCount++
	}
	last, hole := s.Compacted, int64(0) // hole is the last revision whose change is left out or missing
	skip := func(d *DamagedRow) {
		report(d.Finding)
		hole = max(hole, d.Revision)
	}
	for row, err := range soundChanges(skip) {
		if err != nil {
			return Snapshot{}, err
		}
		if row.Revision > last+1 {
			hole = row.Revision - 1
		}
		last = max(last, row.Revision)
	}
	if last < s.Revision {
		hole = s.Revision
	}
	s.Objects, s.Changes = soundObjects(ignore), soundChanges(ignore)
	if hole > 0 {
		report(Finding{"changes", fmt.Sprintf("the history up to revision %d, because not all of it is there", hole)})
		s.Compacted, s.Retained = max(s.Compacted, hole), nil
		s.Changes = after(s.Compacted, s.Changes)
	}
	return s, nil
}

func ignore(*DamagedRow) {}

// soundRows yields the rows that can be read and in which check finds nothing, and calls skip
// for the others.
func soundRows[T any](rows iter.Seq2[*T, error], skip func(*DamagedRow), check func(*T) *DamagedRow) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		for row, err := range rows {
			var damaged *DamagedRow
			if err == nil {
				damaged = check(row)
			} else {
				errors.As(err, &damaged)
			}
			switch {
			case damaged != nil:
				skip(damaged)
			case !yield(row, err) || err != nil:
				return
			}
		}
	}
}

// after yields the changes after a revision.
func after(revision int64, changes iter.Seq2[*ChangeRow, error]) iter.Seq2[*ChangeRow, error] {
	return func(yield func(*ChangeRow, error) bool) {
		for row, err := range changes {
			if err == nil && row.Revision <= revision {
				continue
			}
			if !yield(row, err) {
				return
			}
		}
	}
}
