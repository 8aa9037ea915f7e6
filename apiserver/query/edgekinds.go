package query

import (
	"cmp"
	"iter"

	"byre/apiserver/storage/transcode"
)

// containersOf yields the containers of a Pod, with their state. A status is that of the container of its name.
func containersOf(_ *edgeCursor, found [][]byte) iter.Seq2[[]any, error] {
	return func(yield func([]any, error) bool) {
		for i, kind := range []string{"main", "init", "ephemeral"} {
			statuses := found[len(found)/2+i]
			for container := range transcode.Elements(found[i]) {
				if !yield(containerRow(kind, container, statuses), nil) {
					return
				}
			}
		}
	}
}

// containerRow returns the values of the columns of containers.
func containerRow(kind string, container, statuses []byte) []any {
	name := text(member(container, "name"))
	var status []byte
	for s := range transcode.Elements(statuses) {
		if name != nil && text(member(s, "name")) == name {
			status = s
			break
		}
	}
	var state, reason any
	for key, value := range transcode.Members(member(status, "state")) {
		state, reason = key, text(member(value, "reason"))
	}
	resources := member(container, "resources")
	amount := func(path ...string) any { return Quantity.Value(member(resources, path...)) }
	return []any{
		kind, name, text(member(container, "image")),
		amount("requests", "cpu"), amount("requests", "memory"), amount("limits", "cpu"), amount("limits", "memory"),
		state, reason, Boolean.Value(member(status, "ready")), Integer.Value(member(status, "restartCount")),
	}
}

// volumesOf yields the volumes of a Pod, and the sources of those that are projected.
func volumesOf(_ *edgeCursor, found [][]byte) iter.Seq2[[]any, error] {
	return func(yield func([]any, error) bool) {
		for volume := range transcode.Elements(found[0]) {
			name := text(member(volume, "name"))
			for kind, of := range transcode.Members(volume) {
				if kind == "name" {
					continue
				}
				if !yield([]any{name, kind, sourceOf(kind, of)}, nil) {
					return
				}
				for projected := range transcode.Elements(member(of, "sources")) {
					for kind, of := range transcode.Members(projected) {
						if !yield([]any{name, kind, sourceOf(kind, of)}, nil) {
							return
						}
					}
				}
			}
		}
	}
}

// sourceOf returns the name of what a volume, or a source of a projected one, is made of; nil if it has none.
func sourceOf(kind string, of []byte) any {
	switch kind {
	case "configMap":
		return textOf(of, "name")
	case "secret":
		return textOf(of, "secretName", "name")
	case "persistentVolumeClaim":
		return textOf(of, "claimName")
	}
	return nil
}

// rulesOf yields the API groups, resources and verbs of the rules of a role. Rules about paths have none.
func rulesOf(_ *edgeCursor, found [][]byte) iter.Seq2[[]any, error] {
	return func(yield func([]any, error) bool) {
		for rule := range transcode.Elements(found[0]) {
			var names any
			if of := member(rule, "resourceNames"); of != nil {
				names = JSON.Value(of)
			}
			for group := range transcode.Elements(member(rule, "apiGroups")) {
				for resource := range transcode.Elements(member(rule, "resources")) {
					for verb := range transcode.Elements(member(rule, "verbs")) {
						if !yield([]any{text(group), text(resource), text(verb), names}, nil) {
							return
						}
					}
				}
			}
		}
	}
}

// eventPaths are the members of an Event of the core group that tell something. Those of events.k8s.io are the same
// objects.
var eventPaths = [][]string{
	{"involvedObject"}, {"type"}, {"reason"}, {"message"}, {"count"}, {"series"},
	{"firstTimestamp"}, {"lastTimestamp"}, {"eventTime"}, {"reportingComponent"}, {"source"},
}

// toldOf yields the row of an Event, with the object that it is about.
func toldOf(c *edgeCursor, found [][]byte) iter.Seq2[[]any, error] {
	about, series, eventTime := found[0], found[5], Time.Value(found[8])
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
			cmp.Or(Integer.Value(found[4]), Integer.Value(member(series, "count")), any(int64(1))),
			cmp.Or(Time.Value(found[6]), eventTime),
			cmp.Or(Time.Value(found[7]), Time.Value(member(series, "lastObservedTime")), eventTime),
			cmp.Or(textOrNull(reporter), text(member(found[10], "component"))),
		}, err)
	}
}
