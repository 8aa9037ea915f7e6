package check

import (
	"slices"
	"testing"
	"time"

	"byre/e2e/robustness/history"
)

const second = time.Second

// good is a history of one object without a violation: the object is created red at revision
// 11, updated to blue at 12, deleted at 13, and created red again at 14.
func good() *history.History {
	red1 := history.Object{Name: "k", Value: "v1", Color: "red"}
	blue2 := history.Object{Name: "k", Value: "v2", Color: "blue"}
	red3 := history.Object{Name: "k", Value: "v3", Color: "red"}
	at := func(o history.Object, revision int64) history.Object {
		o.Revision = revision
		return o
	}
	ok := func(o history.Operation, begin int) *history.Operation {
		o.Client, o.Replica, o.Outcome = "client", "replica", history.OK
		o.Begin, o.End = time.Duration(begin)*second, time.Duration(begin+1)*second
		return &o
	}
	h := &history.History{Initial: 10, Log: history.Log{
		Covered: []history.Range{{First: 11, Last: 14}},
		Changes: []history.Change{{Revision: 11, Name: "k"}, {Revision: 12, Name: "k"},
			{Revision: 13, Name: "k", Deletes: true}, {Revision: 14, Name: "k"}},
	}}
	h.Operations = []*history.Operation{
		0: ok(history.Operation{Kind: history.Create, Object: red1, Result: at(red1, 11)}, 1),
		1: ok(history.Operation{Kind: history.Update, Object: at(blue2, 11), Result: at(blue2, 12)}, 3),
		2: ok(history.Operation{Kind: history.List, Items: []history.Object{at(blue2, 12)}, Revision: 12}, 5),
		3: ok(history.Operation{Kind: history.Delete, Object: history.Object{Name: "k", Revision: 12}}, 7),
		4: ok(history.Operation{Kind: history.Create, Object: red3, Result: at(red3, 14)}, 9),
		5: ok(history.Operation{Kind: history.Get, Object: history.Object{Name: "k"}, Result: at(red3, 14)}, 11),
		6: ok(history.Operation{Kind: history.List, Mode: history.Exact, At: 12, Items: []history.Object{at(blue2, 12)},
			Revision: 12}, 12),
		7: ok(history.Operation{Kind: history.Touch, Object: at(red3, 14), Result: at(red3, 14)}, 13),
	}
	h.Watches = []*history.Watch{
		0: {After: 10, Events: []history.Event{
			{Type: history.Added, Object: at(red1, 11), At: 2 * second},
			{Type: history.Modified, Object: at(blue2, 12), At: 4 * second},
			{Type: history.Deleted, Object: at(blue2, 13), At: 8 * second},
			{Type: history.Added, Object: at(red3, 14), At: 10 * second},
			{Type: history.Bookmark, Object: history.Object{Revision: 14}, At: 11 * second},
		}},
		1: {After: 10, Color: "red", Events: []history.Event{
			{Type: history.Added, Object: at(red1, 11), At: 2 * second},
			{Type: history.Deleted, Object: at(red1, 12), At: 4 * second},
			{Type: history.Added, Object: at(red3, 14), At: 10 * second},
		}},
		2: {Initial: true, Events: []history.Event{
			{Type: history.Added, Object: at(blue2, 12), At: 6 * second},
			{Type: history.InitialEnd, Object: history.Object{Revision: 12}, At: 6 * second},
			{Type: history.Deleted, Object: at(blue2, 13), At: 8 * second},
		}},
	}
	return h
}

func TestHistory_AcceptsWhatKeepsPromises(t *testing.T) {
	t.Parallel()
	for _, v := range History(good(), time.Minute) {
		t.Error(v)
	}
}

// TestHistory_AcceptsBothEndsOfAnUnknownOutcome has two updates without an answer, of which
// one took effect and the other did not.
func TestHistory_AcceptsBothEndsOfAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	h := good()
	h.Operations[1].Outcome, h.Operations[1].Result = history.Unknown, history.Object{}
	lost := *h.Operations[1]
	lost.Object.Value = "v2, lost"
	h.Operations = append(h.Operations, &lost)
	for _, v := range History(h, time.Minute) {
		t.Error(v)
	}
}

func TestHistory_AcceptsALateEffectOfAnUnknownDelete(t *testing.T) {
	t.Parallel()
	h := good()
	// The delete takes effect after its client has given up, and before the create.
	h.Operations[3].Outcome, h.Operations[3].Begin, h.Operations[3].End = history.Unknown, 5*second, 6*second
	for _, v := range History(h, time.Minute) {
		t.Error(v)
	}
}

func TestHistory_FindsViolations(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		violate func(*history.History)
		want    string
	}{
		{"a revision is missing in the log", func(h *history.History) {
			h.Log.Changes = slices.Delete(h.Log.Changes, 2, 3)
		}, Dense},
		{"a revision is given twice", func(h *history.History) {
			h.Log.Changes = append(h.Log.Changes, history.Change{Revision: 12, Name: "other"})
		}, Dense},
		{"two writes have one revision", func(h *history.History) {
			h.Operations[4].Result.Revision = 12
		}, OneHistory},
		{"a value appears that nobody sent", func(h *history.History) {
			h.Operations[1].Object.Value = "something else"
		}, OnlySent},
		{"a write that failed took effect", func(h *history.History) {
			h.Operations[1].Outcome, h.Operations[1].Error, h.Operations[1].Result = history.Failed, "Unavailable",
				history.Object{}
		}, OnlySent},
		{"a value is seen before it is sent", func(h *history.History) {
			h.Watches[0].Events[1].At, h.Watches[0].Events[0].At = 2*second, 2*second
		}, OnlySent},
		{"a write took effect twice", func(h *history.History) {
			h.Operations[5].Result = history.Object{Name: "k", Revision: 15, Value: "v2", Color: "blue"}
		}, Once},
		{"an update that changes nothing takes a revision", func(h *history.History) {
			h.Operations[7].Result.Revision = 15
		}, Once},
		{"an acknowledged write is not in the log", func(h *history.History) {
			h.Log.Changes[3].Name = ""
		}, Acknowledged},
		{"a revision goes back", func(h *history.History) {
			h.Operations[0].Begin, h.Operations[0].End = 5*second, 6*second
		}, RealTime},
		{"a read shows what is written later", func(h *history.History) {
			h.Operations[2].Begin, h.Operations[2].End = 1*second, 2*second
		}, RealTime},
		{"a latest list is stale", func(h *history.History) {
			h.Operations[2].Begin, h.Operations[2].End = 13*second, 14*second
		}, Latest},
		{"an answer is an internal error", func(h *history.History) {
			h.Operations[5].Outcome, h.Operations[5].Error = history.Unknown, history.Internal
		}, Answers},
		{"a watch ends with an internal error", func(h *history.History) {
			h.Watches[0].Error = history.Internal
		}, Answers},
		{"a list lacks an object", func(h *history.History) {
			h.Operations[2].Items = nil
		}, Snapshot},
		{"a list shows a deleted object", func(h *history.History) {
			h.Operations[2].Revision = 13
		}, Snapshot},
		{"a list shows an object's earlier state", func(h *history.History) {
			h.Operations[2].Items = []history.Object{h.Operations[0].Result}
		}, Snapshot},
		{"a list is of another revision than was asked for", func(h *history.History) {
			h.Operations[6].At = 11
		}, Snapshot},
		{"a get is stale", func(h *history.History) {
			h.Operations[5].Result = h.Operations[1].Result
		}, Linearizable},
		{"two updates replace one revision", func(h *history.History) {
			h.Operations[4].Kind, h.Operations[4].Object.Revision = history.Update, 11
		}, Linearizable},
		{"a create finds an object that was deleted", func(h *history.History) {
			h.Operations = append(h.Operations, &history.Operation{
				Kind: history.Create, Object: history.Object{Name: "k", Value: "v4"}, Outcome: history.Failed,
				Error: history.AlreadyExists,
				Begin: 8*second + 1, End: 9*second - 1,
			})
		}, Linearizable},
		{"an event is lost", func(h *history.History) {
			h.Watches[0].Events = slices.Delete(h.Watches[0].Events, 1, 2)
		}, WatchWhole},
		{"an event is shown twice", func(h *history.History) {
			h.Watches[0].Events = slices.Insert(h.Watches[0].Events, 1, h.Watches[0].Events[0])
		}, WatchOrder},
		{"events change places", func(h *history.History) {
			h.Watches[0].Events[0], h.Watches[0].Events[1] = h.Watches[0].Events[1], h.Watches[0].Events[0]
		}, WatchOrder},
		{"an event has another's value", func(h *history.History) {
			h.Watches[0].Events[2].Object.Value = "v1"
		}, WatchWhole},
		{"an event has the wrong type", func(h *history.History) {
			h.Watches[0].Events[1].Type = history.Added
		}, WatchWhole},
		{"a watch with a selector shows what does not match", func(h *history.History) {
			h.Watches[1].Events[1] = h.Watches[0].Events[1]
		}, WatchWhole},
		{"a bookmark comes before an event", func(h *history.History) {
			h.Watches[0].Events = slices.Delete(h.Watches[0].Events, 3, 4)
		}, Bookmarks},
		{"the initial events lack an object", func(h *history.History) {
			h.Watches[2].Events = slices.Delete(h.Watches[2].Events, 0, 1)
		}, WatchWhole},
		{"an event is lost after the initial ones", func(h *history.History) {
			h.Watches[2].Events[2] = h.Watches[0].Events[3]
		}, WatchWhole},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := good()
			test.violate(h)
			found := History(h, time.Minute)
			if !slices.ContainsFunc(found, func(v Violation) bool { return v.Promise == test.want }) {
				t.Errorf("found %v, want %q", found, test.want)
			}
		})
	}
}
