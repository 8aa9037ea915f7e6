package check

import (
	"cmp"
	"slices"
	"time"

	"byre/e2e/robustness/history"
)

// change is what one revision did to an object of the test.
type change struct {
	revision int64
	name     string
	deletes  bool
	// value and color are those of a put; an empty value is not known.
	value, color string
	// seen is when a client first saw it.
	seen time.Duration
}

// reference is the sequence of changes, put together from all that was seen.
type reference struct {
	initial int64
	isCut   bool
	log     *history.Log
	// changes are ascending, byName too.
	changes    []*change
	byName     map[string][]*change
	byValue    map[string]*change
	atRevision map[int64]*change
	// logged is what the database's log has.
	logged map[int64]history.Change
}

func newReference(j *judge, h *history.History) *reference {
	r := &reference{
		initial: h.Initial, isCut: h.IsCut, log: &h.Log,
		byName: map[string][]*change{}, byValue: map[string]*change{}, atRevision: map[int64]*change{},
		logged: map[int64]history.Change{},
	}
	for _, c := range h.Log.Changes {
		r.logged[c.Revision] = c
		if c.Name != "" {
			r.add(j, change{revision: c.Revision, name: c.Name, deletes: c.Deletes, seen: 1<<63 - 1})
		}
	}
	for _, o := range h.Operations {
		if o.Outcome != history.OK {
			continue
		}
		r.addObject(j, o.Result, o.End)
		for _, item := range o.Items {
			r.addObject(j, item, o.End)
		}
	}
	for _, w := range h.Watches {
		for _, e := range w.Events {
			switch e.Type {
			case history.Added, history.Modified:
				r.addObject(j, e.Object, e.At)
			case history.Deleted:
				// With a selector it may be an object that stopped to match.
				if w.Color == "" {
					r.add(j, change{revision: e.Object.Revision, name: e.Object.Name, deletes: true, seen: e.At})
				}
			}
		}
	}
	for _, c := range r.atRevision {
		r.changes = append(r.changes, c)
	}
	slices.SortFunc(r.changes, func(a, b *change) int { return cmp.Compare(a.revision, b.revision) })
	for _, c := range r.changes {
		r.byName[c.name] = append(r.byName[c.name], c)
		if c.value == "" {
			continue
		}
		if other := r.byValue[c.value]; other != nil {
			j.report(c.seen, Once, "%q is at revision %d and at %d", c.value, other.revision, c.revision)
		}
		r.byValue[c.value] = c
	}
	return r
}

func (r *reference) addObject(j *judge, o history.Object, at time.Duration) {
	if o.Revision != 0 {
		r.add(j, change{revision: o.Revision, name: o.Name, value: o.Value, color: o.Color, seen: at})
	}
}

// add merges what one observation shows of a revision.
func (r *reference) add(j *judge, c change) {
	known := r.atRevision[c.revision]
	if known == nil {
		r.atRevision[c.revision] = &c
		return
	}
	switch {
	case known.name != c.name || known.deletes != c.deletes:
		j.report(c.seen, OneHistory, "revision %d is %s and %s", c.revision, describe(known), describe(&c))
	case known.value == "":
		known.value, known.color = c.value, c.color
	case c.value != "" && (known.value != c.value || known.color != c.color):
		j.report(c.seen, OneHistory, "revision %d is %s and %s", c.revision, describe(known), describe(&c))
	}
	known.seen = min(known.seen, c.seen)
}

func describe(c *change) string {
	if c.deletes {
		return "a delete of " + c.name
	}
	return "a write of " + c.name + ": " + c.color + " " + c.value
}

// last is the change whose state the object has at a revision; nil for an object that was
// never there.
func (r *reference) last(name string, revision int64) *change {
	all := r.byName[name]
	n, _ := slices.BinarySearchFunc(all, revision+1, func(c *change, revision int64) int {
		return cmp.Compare(c.revision, revision)
	})
	if n == 0 {
		return nil
	}
	return all[n-1]
}

// state are the objects at a revision, by name.
func (r *reference) state(revision int64) map[string]*change {
	state := map[string]*change{}
	for name := range r.byName {
		if c := r.last(name, revision); c != nil && !c.deletes {
			state[name] = c
		}
	}
	return state
}

// isWhole reports whether the reference has every change up to a revision.
func (r *reference) isWhole(revision int64) bool { return r.log.Covers(r.initial+1, revision) }
