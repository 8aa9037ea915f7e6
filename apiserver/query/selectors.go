package query

import (
	"bytes"
	"encoding/json"
	"iter"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

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
