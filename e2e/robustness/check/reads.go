package check

import (
	"byre/e2e/robustness/history"
)

// checkReads compares what lists and reads returned with the sequence of changes.
func (j *judge) checkReads(h *history.History, ref *reference) {
	for _, o := range h.Operations {
		switch {
		case o.Outcome != history.OK:
		case o.Kind == history.List:
			j.checkList(o, ref)
		case o.Kind == history.Get && o.Mode == history.NotOlderThan && o.Result.Revision != 0:
			// The object may be older than the revision asked for, if it did not change.
			if c := ref.last(o.Result.Name, o.At); c != nil && c.revision > o.Result.Revision && !c.deletes {
				j.report(o.End, Snapshot, "a get not older than %d shows %s at %d; it was at %d by then", o.At, o.Result.Name,
					o.Result.Revision, c.revision)
			}
		}
	}
}

func (j *judge) checkList(o *history.Operation, ref *reference) {
	switch {
	case o.Mode == history.Exact && o.Revision != o.At:
		j.report(o.End, Snapshot, "a list at exactly %d is of revision %d", o.At, o.Revision)
	case o.Mode == history.NotOlderThan && o.Revision < o.At:
		j.report(o.End, Snapshot, "a list not older than %d is of revision %d", o.At, o.Revision)
	}
	got := map[string]history.Object{}
	for i, item := range o.Items {
		if _, twice := got[item.Name]; twice {
			j.report(o.End, Snapshot, "a list of revision %d has %s twice", o.Revision, item.Name)
		}
		if i > 0 && o.Items[i-1].Name >= item.Name {
			j.report(o.End, Snapshot, "a list of revision %d is not in order: %s before %s", o.Revision, o.Items[i-1].Name,
				item.Name)
		}
		if o.Color != "" && item.Color != o.Color {
			j.report(o.End, Snapshot, "a list of what is %s has %+v", o.Color, item)
		}
		got[item.Name] = item
	}
	want := ref.state(o.Revision)
	for name, c := range want {
		item, found := got[name]
		switch {
		case found && item.Revision != c.revision:
			j.report(o.End, Snapshot, "a list of revision %d by %s on %s has %s at %d, which was at %d", o.Revision, o.Client,
				o.Replica, name, item.Revision, c.revision)
		case !found && ref.isWhole(o.Revision) && (o.Color == "" || c.color == o.Color):
			j.report(o.End, Snapshot, "a list of revision %d by %s on %s lacks %s at %d", o.Revision, o.Client, o.Replica, name,
				c.revision)
		}
	}
	for name, item := range got {
		if want[name] == nil {
			j.report(o.End, Snapshot, "a list of revision %d by %s on %s has %s at %d, which was not there", o.Revision,
				o.Client, o.Replica, name, item.Revision)
		}
	}
}
