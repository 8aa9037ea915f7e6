package query

import (
	"cmp"
	"iter"
)

// eventPaths are the members of an Event of the core group that tell something. Those of events.k8s.io are the same
// objects.
var eventPaths = [][]string{
	{"involvedObject"}, {"type"}, {"reason"}, {"message"}, {"count"}, {"series"},
	{"firstTimestamp"}, {"lastTimestamp"}, {"eventTime"}, {"reportingComponent"}, {"source"},
}

// toldOf yields the row of an Event, with the object that it is about.
func toldOf(c *edgeCursor, found [][]byte) iter.Seq2[[]any, error] {
	about, series, eventTime := found[0], found[5], timestamp(found[8])
	return func(yield func([]any, error) bool) {
		apiVersion, _ := text(member(about, "apiVersion")).(string)
		kind, _ := text(member(about, "kind")).(string)
		namespace, _ := text(member(about, "namespace")).(string)
		reporter, _ := text(found[9]).(string)
		var resource any
		name, served, err := c.known.ofKind(apiVersion, kind)
		if served {
			resource = name
		}
		yield([]any{
			resource, namespace, text(member(about, "name")), nil, text(found[1]), text(found[2]), text(found[3]),
			cmp.Or(integer(found[4]), integer(member(series, "count")), any(int64(1))),
			cmp.Or(timestamp(found[6]), eventTime),
			cmp.Or(timestamp(found[7]), timestamp(member(series, "lastObservedTime")), eventTime),
			cmp.Or(textOrNull(reporter), text(member(found[10], "component"))),
		}, err)
	}
}
