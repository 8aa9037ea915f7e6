package check

import (
	"time"

	"byre/e2e/robustness/history"
)

// checkLoss judges a history with a failover that lost commits. It judges what was before
// the failover and what came after it as two histories, and then compares the two.
func checkLoss(h *history.History, patience time.Duration) []Violation {
	before := h.Before()
	j := &judge{}
	ref := newReference(j, before)
	j.checkHistory(before, ref, patience)
	j.checkKept(h, ref)
	j.checkEpoch(h)
	j.checkGivenOnce(h)
	after := &judge{}
	later := h.After()
	after.checkHistory(later, newReference(after, later), patience)
	return append(j.violations, after.violations...)
}

// checkKept compares the first list of the new database with the state at the last common
// revision: an object is as it was then, or as somebody made it since.
func (j *judge) checkKept(h *history.History, ref *reference) {
	first, common := h.Loss.First, h.Loss.Common
	sent, deleted := map[string]*history.Operation{}, map[string]bool{}
	for _, o := range h.Operations {
		switch {
		case o.Outcome == history.Failed || o.End < h.Loss.At:
		case o.Puts():
			sent[o.Object.Value] = o
		case o.Kind == history.Delete:
			deleted[o.Object.Name] = true
		}
	}
	got := map[string]history.Object{}
	for _, item := range first.Items {
		got[item.Name] = item
		kept := ref.last(item.Name, common)
		switch {
		case item.Revision > common:
			if c := ref.byValue[item.Value]; sent[item.Value] == nil {
				j.report(first.End, OnlySent, "after the failover %+v is there, which nobody sent since", item)
			} else if c != nil && c.revision <= common {
				j.report(first.End, Once, "after the failover %+v is there, which was at revision %d", item, c.revision)
			}
		case kept == nil:
			if ref.isWhole(common) {
				j.report(first.End, OnlySent, "after the failover %+v is there, which was not there at the last common revision %d",
					item, common)
			}
		case kept.revision < item.Revision && sent[item.Value] != nil && !ref.isWhole(common):
			// It was not acknowledged, and the log was read before it.
		case kept.deletes || kept.revision != item.Revision || kept.value != "" && kept.value != item.Value:
			j.report(first.End, Acknowledged, "after the failover %+v is there; at the last common revision %d it was %s at %d",
				item, common, describe(kept), kept.revision)
		}
	}
	for name, kept := range ref.state(common) {
		if _, found := got[name]; !found && !deleted[name] {
			j.report(first.End, Acknowledged, "after the failover %s is gone, which was at %d at the last common revision %d",
				name, kept.revision, common)
		}
	}
}

// checkEpoch checks that no watch continues from the old database's revisions to those of
// the new epoch. Such a watch has to end with 410.
func (j *judge) checkEpoch(h *history.History) {
	begin := h.Loss.First.Revision
	for _, w := range h.Watches {
		last := w.After
		isInitial := w.Initial
		for _, e := range w.Events {
			if isInitial {
				// Initial events are of any age.
				isInitial = e.Type != history.InitialEnd
				last = e.Object.Revision
				continue
			}
			if e.At >= h.Loss.At && last < begin-SameEpoch && e.Object.Revision > begin-SameEpoch {
				j.report(e.At, WatchWhole, "a watch by %s on %s goes on from revision %d to %d, in a new epoch", w.Client,
					w.Replica, last, e.Object.Revision)
				break
			}
			last = e.Object.Revision
		}
	}
}

// checkGivenOnce checks that the new database gives no revision again under which a client knows a
// lost write.
func (j *judge) checkGivenOnce(h *history.History) {
	lost := map[int64]*history.Operation{}
	for _, o := range h.Operations {
		if o.Outcome == history.OK && o.IsWrite() && o.End < h.Loss.At && o.Result.Revision > h.Loss.Common {
			lost[o.Result.Revision] = o
		}
	}
	for _, o := range h.Operations {
		if was := lost[o.Result.Revision]; was != nil && o.Outcome == history.OK && o.IsWrite() && o.Begin >= h.Loss.At {
			j.report(o.End, OneHistory, "after the failover revision %d is given to %s of %s; it was of %s of %s, which is lost",
				o.Result.Revision, o.Kind, o.Object.Name, was.Kind, was.Object.Name)
		}
	}
}

// SameEpoch is more than the changes of a test, and less than what lies between two
// epochs (sqlstore/postgres).
const SameEpoch = 500_000
