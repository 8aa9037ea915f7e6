package check

import (
	"slices"
	"testing"
	"time"

	"byre/e2e/robustness/history"
)

// lossy is the good history followed by a failover that lost revision 14, and a new epoch. A client
// creates the object again before the first list, and updates it after that.
func lossy() *history.History {
	h := good()
	op := func(o history.Operation, begin int) *history.Operation {
		o.Client, o.Replica, o.Outcome = "client", "replica", history.OK
		o.Begin, o.End = time.Duration(begin)*second, time.Duration(begin+1)*second
		h.Operations = append(h.Operations, &o)
		return &o
	}
	h.Loss = &history.Loss{At: 15 * second, Common: 13, Log: h.Log}
	red4 := history.Object{Name: "k", Revision: 1_000_014, Value: "v4", Color: "red"}
	red5 := history.Object{Name: "k", Revision: 1_000_021, Value: "v5", Color: "red"}
	op(history.Operation{Kind: history.Create, Object: history.Object{Name: "k", Value: "v4", Color: "red"}, Result: red4},
		17)
	h.Loss.First = op(history.Operation{Kind: history.List, Items: []history.Object{red4}, Revision: 1_000_020}, 20)
	op(history.Operation{Kind: history.Update,
		Object: history.Object{Name: "k", Revision: 1_000_014, Value: "v5", Color: "red"}, Result: red5}, 22)
	op(history.Operation{Kind: history.List, Items: []history.Object{red5}, Revision: 1_000_021}, 24)
	h.Log.Covered = append(slices.Clone(h.Log.Covered), history.Range{First: 1_000_015, Last: 1_000_021})
	for revision := int64(1_000_015); revision < 1_000_021; revision++ {
		h.Log.Changes = append(h.Log.Changes, history.Change{Revision: revision})
	}
	h.Log.Changes = append(h.Log.Changes, history.Change{Revision: 1_000_021, Name: "k"})
	h.Watches = append(h.Watches, &history.Watch{After: 1_000_020, Begin: 21 * second, Events: []history.Event{
		{Type: history.Modified, Object: red5, At: 23 * second},
	}})
	return h
}

func TestHistory_AcceptsTheLossOfTheLastCommits(t *testing.T) {
	t.Parallel()
	for _, v := range History(lossy(), time.Minute) {
		t.Error(v)
	}
}

// The log of the old database was last read before a commit whose answer was lost, and which the new one has.
func TestHistory_AcceptsALastCommitWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	h := lossy()
	h.Loss.Common = 14
	h.Loss.Log = history.Log{Covered: []history.Range{{First: 11, Last: 13}}, Changes: h.Log.Changes[:3]}
	h.Log = history.Log{Covered: h.Log.Covered[1:], Changes: slices.Delete(slices.Clone(h.Log.Changes), 3, 4)}
	for _, w := range h.Watches[:3] {
		w.Events = slices.DeleteFunc(w.Events, func(e history.Event) bool { return e.Object.Revision == 14 })
	}
	unanswered := h.Operations[4]
	unanswered.Outcome, unanswered.Result, unanswered.End = history.Unknown, history.Object{}, 16*second
	h.Operations = slices.Delete(h.Operations, 5, 9) // reads of it, and the client that creates the object again
	h.Loss.First.Items = []history.Object{{Name: "k", Revision: 14, Value: "v3", Color: "red"}}
	h.Operations[len(h.Operations)-2].Object.Revision = 14
	for _, v := range History(h, time.Minute) {
		t.Error(v)
	}
	unanswered.Outcome = history.Failed
	if len(History(h, time.Minute)) == 0 {
		t.Error("a write that has failed is there")
	}
}

func TestHistory_FindsViolationsAroundALoss(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		violate func(*history.History)
		want    string
	}{
		"what both databases had is gone": {func(h *history.History) {
			h.Loss.Common, h.Loss.First.Items = 14, nil
		}, Acknowledged},
		"what both databases had is older": {func(h *history.History) {
			h.Loss.Common = 12
			h.Loss.First.Items = []history.Object{h.Operations[0].Result}
		}, Acknowledged},
		"what was deleted is there again": {func(h *history.History) {
			h.Loss.First.Items = []history.Object{h.Operations[1].Result}
		}, Acknowledged},
		"what was lost is there again": {func(h *history.History) {
			h.Loss.First.Items = []history.Object{{Name: "k", Revision: 14, Value: "v3", Color: "red"}}
		}, OnlySent},
		"a watch goes on in the new epoch": {func(h *history.History) {
			h.Watches[0].Events = append(h.Watches[0].Events, h.Watches[3].Events...)
		}, WatchWhole},
		"the old database had broken a promise": {func(h *history.History) {
			h.Operations[2].Items = nil
		}, Snapshot},
		"a lost revision is given again": {func(h *history.History) {
			lost := *h.Operations[len(h.Operations)-4]
			lost.Begin, lost.End = 13*second, 14*second
			h.Operations = append(h.Operations, &lost)
		}, OneHistory},
		"a watch of the new epoch lacks an event": {func(h *history.History) {
			h.Watches[3].Events = []history.Event{{Type: history.Bookmark, Object: history.Object{Revision: 1_000_021},
				At: 24 * second}}
		}, Bookmarks},
		"a write of the new epoch is not in its log": {func(h *history.History) {
			h.Log.Changes[len(h.Log.Changes)-1].Name = ""
		}, Acknowledged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := lossy()
			test.violate(h)
			found := History(h, time.Minute)
			if !slices.ContainsFunc(found, func(v Violation) bool { return v.Promise == test.want }) {
				t.Errorf("found %v, want %q", found, test.want)
			}
		})
	}
}
