package query

import (
	"bytes"
	"cmp"
	"encoding/json"
	"iter"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"byre/apiserver/storage/transcode"
)

// rowsOf yields the values of the columns of an edge, from the fourth on, for each of its rows that is made of one
// object. c is at the object; found has the JSON at each of the edge's paths, nil where there is none.
type rowsOf func(c *edgeCursor, found [][]byte) iter.Seq2[[]any, error]

// membersOf yields the keys and the values of a map of texts.
func membersOf(_ *edgeCursor, found [][]byte) iter.Seq2[[]any, error] {
	return func(yield func([]any, error) bool) {
		for key, value := range transcode.Members(found[0]) {
			if !yield([]any{text([]byte(`"` + key + `"`)), text(value)}, nil) {
				return
			}
		}
	}
}

// listOf yields the values of the columns, by their paths, for each object of a list.
func listOf(c *edgeCursor, found [][]byte) iter.Seq2[[]any, error] {
	columns := c.Columns[edgeOwn:]
	return func(yield func([]any, error) bool) {
		for element := range transcode.Elements(found[0]) {
			values := make([]any, len(columns))
			for key, value := range transcode.Members(element) {
				for i := range columns {
					if column := &columns[i]; column.Path[len(column.Path)-1] == key {
						values[i] = column.Value(value)
					}
				}
			}
			if !yield(values, nil) {
				return
			}
		}
	}
}

// member returns the JSON at a path; nil if there is none.
func member(data []byte, path ...string) []byte {
	for _, name := range path {
		var found []byte
		for s := transcode.NewScanner(data, 0); found == nil && s.NextMember(); {
			is, start := string(s.ReadKey()) == name, s.Pos
			if s.SkipValue(); is {
				found = data[start:s.Pos]
			}
		}
		data = found
	}
	return data
}

// text returns the text that JSON is, or that of a number; nil for other JSON.
func text(data []byte) any { return Text.Value(data) }

// textOf returns the first text that an object has at one of some members; nil if it has none.
func textOf(object []byte, members ...string) any {
	for _, name := range members {
		if s := text(member(object, name)); s != nil {
			return s
		}
	}
	return nil
}

// sources are the types of where variables come from, by the members that name them.
var sources = map[string]string{
	"configMapKeyRef": "configMap", "secretKeyRef": "secret", "fieldRef": "field", "resourceFieldRef": "resource", "fileKeyRef": "file",
	"configMapRef": "configMap", "secretRef": "secret",
}

// envRefsOf yields the variables of the containers of a Pod that come from elsewhere.
func envRefsOf(_ *edgeCursor, found [][]byte) iter.Seq2[[]any, error] {
	return func(yield func([]any, error) bool) {
		for _, containers := range found {
			for container := range transcode.Elements(containers) {
				for values := range envRefsIn(container) {
					if !yield(values, nil) {
						return
					}
				}
			}
		}
	}
}

// envRefsIn yields the values of the columns of container_env_refs for a container.
func envRefsIn(container []byte) iter.Seq[[]any] {
	return func(yield func([]any) bool) {
		name := textOf(container, "name")
		of := func(variable any, references []byte) bool {
			for key, reference := range transcode.Members(references) {
				source, ok := sources[key]
				if !ok {
					continue
				}
				optional := string(member(reference, "optional")) == "true"
				if !yield([]any{name, variable, source, textOf(reference, "name", "containerName", "volumeName"), textOf(reference, "key", "fieldPath", "resource"), optional}) {
					return false
				}
			}
			return true
		}
		for variable := range transcode.Elements(member(container, "env")) {
			if from := member(variable, "valueFrom"); from != nil && !of(textOf(variable, "name"), from) {
				return
			}
		}
		for from := range transcode.Elements(member(container, "envFrom")) {
			if !of(nil, from) {
				return
			}
		}
	}
}

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

const podsTable = "pods"

// selectorMembers are the resources that select Pods, by the members of spec that are the selectors.
var selectorMembers = map[string]string{
	"services": "selector", "replicationcontrollers": "selector",
	"deployments": "selector", "replicasets": "selector", "statefulsets": "selector", "daemonsets": "selector",
	"jobs": "selector", "poddisruptionbudgets": "selector", "networkpolicies": "podSelector",
}

// selectedOf yields the Pods that an object selects. found is its spec.
func selectedOf(c *edgeCursor, found [][]byte) iter.Seq2[[]any, error] {
	resource := c.reads.name
	return func(yield func([]any, error) bool) {
		selector := parseSelector(resource, member(found[0], selectorMembers[resource]))
		if c.selected == nil || labels.MatchesNothing(selector) {
			return
		}
		pods, err := c.selected.in(c.rows[0].Namespace)
		if err != nil {
			yield(nil, err)
			return
		}
		for _, p := range pods {
			if selector.Matches(p.labels) && !yield([]any{p.name}, nil) {
				return
			}
		}
	}
}

// parseSelector parses a selector in JSON. Like upstream's, one that is not there selects nothing, and an empty
// one of a map of labels neither.
func parseSelector(resource string, data []byte) labels.Selector {
	if resource == "services" || resource == "replicationcontrollers" {
		var set labels.Set
		if json.Unmarshal(data, &set) != nil || len(set) == 0 {
			return labels.Nothing()
		}
		return set.AsSelectorPreValidated()
	}
	var selector *metav1.LabelSelector
	if json.Unmarshal(data, &selector) != nil {
		return labels.Nothing()
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return labels.Nothing()
	}
	return parsed
}

// podsByNamespace are the Pods that the user may list, at one revision, with their labels.
type podsByNamespace struct {
	shown *selection
	found map[string][]pod
}

type pod struct {
	name   string
	labels labelsOf
}

// podBytes is about what a pod takes in memory beside its labels.
const podBytes = 48

// in returns the Pods of a namespace.
func (p *podsByNamespace) in(namespace string) ([]pod, error) {
	if pods, ok := p.found[namespace]; ok {
		return pods, nil
	}
	entries, err := p.shown.in(namespace)
	if err != nil {
		return nil, err
	}
	reader, pods := newReader(p.shown.view), make([]pod, 0, len(entries))
	for _, e := range entries {
		found, err := reader.value(e, LabelsColumn)
		if err != nil {
			return nil, err
		}
		of, _ := found.(RawJSON)
		if err := p.shown.budget.take(podBytes + len(of)); err != nil {
			return nil, err
		}
		pods = append(pods, pod{e.Name, bytes.Clone(of)})
	}
	p.found[namespace] = pods
	return pods, nil
}

// labelsOf are labels in JSON, which are valid or empty. A selector asks for few of them, so that a map would
// cost more than it saves.
type labelsOf []byte

var _ labels.Labels = labelsOf(nil)

// Lookup implements labels.Labels.
func (l labelsOf) Lookup(label string) (string, bool) {
	value, ok := text(member(l, label)).(string)
	return value, ok
}

// Has implements labels.Labels.
func (l labelsOf) Has(label string) bool {
	_, ok := l.Lookup(label)
	return ok
}

// Get implements labels.Labels.
func (l labelsOf) Get(label string) string {
	value, _ := l.Lookup(label)
	return value
}
