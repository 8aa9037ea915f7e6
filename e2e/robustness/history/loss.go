package history

import "slices"

// Before is the history up to a Loss. What was under way then has an unknown outcome.
func (h *History) Before() *History {
	before := &History{Initial: h.Initial, IsCut: true, Log: h.Loss.Log}
	for _, o := range h.Operations {
		switch {
		case o.Begin >= h.Loss.At:
		case o.End < h.Loss.At:
			before.Operations = append(before.Operations, o)
		case o.IsWrite():
			pending := *o
			pending.End, pending.Outcome, pending.Error, pending.Result = h.Loss.At, Unknown, "", Object{}
			before.Operations = append(before.Operations, &pending)
		}
	}
	for _, w := range h.Watches {
		if w.Begin >= h.Loss.At {
			continue
		}
		cut := *w
		cut.Events = nil
		for _, e := range w.Events {
			if e.At < h.Loss.At {
				cut.Events = append(cut.Events, e)
			}
		}
		before.Watches = append(before.Watches, &cut)
	}
	return before
}

// After is the history from the first list after a Loss on. It begins with the objects of
// that list, as if they had been created then.
func (h *History) After() *History {
	first := h.Loss.First
	after := &History{Initial: first.Revision}
	for _, item := range first.Items {
		after.Operations = append(after.Operations, &Operation{
			Client: "created before " + item.Name, Kind: Create,
			Object: Object{Name: item.Name, Value: item.Value, Color: item.Color},
			Begin:  -2, End: -1, Outcome: OK, Result: item,
		})
	}
	for _, o := range h.Operations {
		switch {
		case o.Begin >= first.End:
			if isAfter(o, first) {
				after.Operations = append(after.Operations, o)
			}
		case o.End <= first.Begin || !o.IsWrite() || o.Outcome == Failed:
		case o.Puts() && o.Outcome == OK:
			if o.Result.Revision > first.Revision {
				after.Operations = append(after.Operations, o)
			}
		case !slices.ContainsFunc(first.Items, func(item Object) bool { return item.Value == o.Object.Value }):
			// It may take effect after the list, or have done so before.
			pending := *o
			pending.Outcome = Unknown
			after.Operations = append(after.Operations, &pending)
		}
	}
	for _, w := range h.Watches {
		if w.After >= first.Revision || w.Initial && w.Begin >= first.End {
			after.Watches = append(after.Watches, w)
		}
	}
	for _, r := range h.Log.Covered {
		if r.First = max(r.First, first.Revision+1); r.First <= r.Last {
			after.Log.Covered = append(after.Log.Covered, r)
		}
	}
	for _, c := range h.Log.Changes {
		if c.Revision > first.Revision {
			after.Log.Changes = append(after.Log.Changes, c)
		}
	}
	return after
}

// isAfter reports whether an operation that began after the first list shows nothing older
// than it. A read of any age, or of an earlier revision, may show older state.
func isAfter(o, first *Operation) bool {
	if o.Kind != Get && o.Kind != List || o.Mode == Latest {
		return true
	}
	if o.Kind == List {
		return o.Revision >= first.Revision
	}
	return o.Result.Revision > first.Revision
}
