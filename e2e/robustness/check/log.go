package check

import (
	"time"

	"byre/e2e/robustness/history"
)

// checkLog checks that the log has each revision that it covers exactly once.
func (j *judge) checkLog(h *history.History) {
	for _, r := range h.Log.Covered {
		seen := map[int64]int{}
		for _, c := range h.Log.Changes {
			if r.First <= c.Revision && c.Revision <= r.Last {
				seen[c.Revision]++
			}
		}
		for revision := r.First; revision <= r.Last; revision++ {
			if seen[revision] != 1 {
				j.report(0, Dense, "revision %d is %d times in the database's log of %d to %d", revision, seen[revision], r.First,
					r.Last)
			}
		}
	}
}

// checkSent checks that a client's write sent each stored value, and that each acknowledged
// write is stored.
func (j *judge) checkSent(h *history.History, ref *reference) {
	sent := map[string]*history.Operation{}
	for _, o := range h.Operations {
		if o.Puts() {
			sent[o.Object.Value] = o
		}
	}
	for _, c := range ref.changes {
		if c.deletes || c.value == "" {
			continue
		}
		o := sent[c.value]
		switch {
		case o == nil || o.Object.Name != c.name || o.Object.Color != c.color:
			j.report(c.seen, OnlySent, "revision %d is %s, which nobody sent", c.revision, describe(c))
		case o.Outcome == history.Failed:
			j.report(c.seen, OnlySent, "revision %d is %s, which failed (%s: %s)", c.revision, describe(c), o.Error, o.Detail)
		case c.seen < o.Begin:
			j.report(c.seen, OnlySent, "revision %d is %s, seen before it was sent", c.revision, describe(c))
		}
	}
	for _, o := range h.Operations {
		j.checkAcknowledged(o, ref)
	}
}

func (j *judge) checkAcknowledged(o *history.Operation, ref *reference) {
	switch {
	case o.Outcome != history.OK:
	case o.Puts():
		got, want := o.Result, o.Object
		if got.Name != want.Name || got.Value != want.Value || got.Color != want.Color {
			j.report(o.End, Acknowledged, "%s of %+v returned %+v", o.Kind, want, got)
		}
		if got.Revision <= o.Object.Revision {
			j.report(o.End, RealTime, "%s of %+v returned revision %d", o.Kind, want, got.Revision)
		}
		if !ref.log.Covers(got.Revision, got.Revision) {
			return
		}
		if c := ref.logged[got.Revision]; c.Name == got.Name && !c.Deletes {
			return
		}
		j.report(o.End, Acknowledged, "%s of %+v, acknowledged at revision %d, is not in the database's log", o.Kind, want,
			got.Revision)
	case o.Kind == history.Touch:
		if o.Result != o.Object {
			j.report(o.End, Once, "an update that changes nothing of %+v returned %+v", o.Object, o.Result)
		}
	}
}

// forever is the End of what may still take effect.
const forever = time.Duration(1<<63 - 1)
