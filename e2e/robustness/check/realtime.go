package check

import (
	"cmp"
	"slices"
	"time"

	"byre/e2e/robustness/history"
)

// observation is a revision that a client saw at a time.
type observation struct {
	at       time.Duration
	revision int64
}

// horizon has the greatest revision that anybody had seen by each time, in the order of time.
type horizon []observation

// newHorizon makes the horizon of all observations, which it sorts.
func newHorizon(all []observation) horizon {
	slices.SortFunc(all, func(a, b observation) int { return cmp.Compare(a.at, b.at) })
	var h horizon
	for _, o := range all {
		if len(h) == 0 || o.revision > h[len(h)-1].revision {
			h = append(h, o)
		}
	}
	return h
}

// before returns the greatest revision that anybody had seen before t; 0 if none.
func (h horizon) before(t time.Duration) int64 {
	n, _ := slices.BinarySearchFunc(h, t, func(o observation, t time.Duration) int { return cmp.Compare(o.at, t) })
	if n == 0 {
		return 0
	}
	return h[n-1].revision
}

// observations are all revisions that clients saw, with the time of each.
func observations(h *history.History) []observation {
	var all []observation
	for _, o := range h.Operations {
		if o.Outcome == history.OK {
			all = append(all, observation{o.End, max(o.Result.Revision, o.Revision)})
		}
	}
	for _, w := range h.Watches {
		for _, e := range w.Events {
			all = append(all, observation{e.At, e.Object.Revision})
		}
	}
	return all
}

// checkRealTime compares revisions with the clock: a write has a greater revision than
// whatever was seen before it was sent, and a latest list shows no less.
func (j *judge) checkRealTime(h *history.History) {
	seen := newHorizon(observations(h))
	// least[i] is the least revision of the writes from writes[i] on.
	var writes []*history.Operation
	for _, o := range h.Operations {
		if o.Outcome == history.OK && o.Puts() {
			writes = append(writes, o)
		}
	}
	slices.SortFunc(writes, func(a, b *history.Operation) int { return cmp.Compare(a.Begin, b.Begin) })
	least := make([]int64, len(writes)+1)
	least[len(writes)] = 1<<63 - 1
	for i := len(writes) - 1; i >= 0; i-- {
		least[i] = min(least[i+1], writes[i].Result.Revision)
	}
	for _, o := range h.Operations {
		if o.Outcome != history.OK {
			continue
		}
		if o.Puts() {
			if before := seen.before(o.Begin); o.Result.Revision <= before {
				j.report(o.End, RealTime, "%s by %s got revision %d; %d was seen before it was sent", o.Kind, o.Client,
					o.Result.Revision, before)
			}
			continue
		}
		n, _ := slices.BinarySearchFunc(writes, o.End, func(w *history.Operation, t time.Duration) int {
			return cmp.Compare(w.Begin, t)
		})
		if got := max(o.Revision, o.Result.Revision); got >= least[n] {
			j.report(o.End, RealTime, "%s by %s shows revision %d; a write that was sent afterwards got %d", o.Kind, o.Client,
				got, least[n])
		}
		if o.Kind == history.List && o.Mode == history.Latest {
			if before := seen.before(o.Begin); o.Revision < before {
				j.report(o.End, Latest, "a list by %s on %s is of revision %d; %d was seen before it was sent", o.Client, o.Replica,
					o.Revision, before)
			}
		}
	}
}
