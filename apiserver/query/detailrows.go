package query

import (
	"bytes"
	"encoding/json"
	"iter"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"byre/apiserver/storage/transcode"
)

// rowMaker makes the rows of an object by the description of a detail table. One goroutine uses it.
type rowMaker struct {
	columns []Column // from the first own one on
	known   *resources
	object  *place
	// alternatives are those of the table, for each of its Kinds.
	alternatives []alternative
}

// place has an element of the row that is made, and the JSON at those paths of it that steps and values need.
type place struct {
	key       string
	json      []byte
	extractor transcode.Extractor
	found     [][]byte
}

// alternative is the steps of an alternative with their places, and where the values of columns are in these.
type alternative struct {
	steps  []placedStep
	values [][]placedSource
}

type placedStep struct {
	*Step
	from, to location
	// name and namedAs are where the names are that must be equal, if the step has NamedAs.
	name, namedAs location
}

type placedSource struct {
	Source
	location
}

// location is a path of a place: the index of what is found at it, or all of the element's JSON if that is negative.
type location struct {
	*place
	index int
}

func (l location) json() []byte {
	if l.index < 0 {
		return l.place.json
	}
	return l.found[l.index]
}

// locate returns the location of a path. It must not be called after set.
func (p *place) locate(path []string) location {
	if len(path) == 0 {
		return location{p, -1}
	}
	p.extractor.Add(len(p.found), path)
	p.found = append(p.found, nil)
	return location{p, len(p.found) - 1}
}

// set makes an element the one of the place.
func (p *place) set(key string, json []byte) {
	p.key, p.json = key, json
	clear(p.found)
	p.extractor.Find(json, p.found)
}

// newRowMaker makes the rowMaker of a table.
func newRowMaker(t *DetailTable, known *resources) *rowMaker {
	own := t.ownColumn()
	m := &rowMaker{columns: t.Columns[own:], known: known, object: &place{}}
	kinds := t.Kinds
	if kinds == nil {
		kinds = [][]string{nil}
	}
	for _, constants := range kinds {
		for _, steps := range t.Alternatives {
			m.alternatives = append(m.alternatives, m.newAlternative(steps, t.Values[own:], constants))
		}
	}
	return m
}

// newAlternative makes an alternative of a table with constants.
func (m *rowMaker) newAlternative(steps []Step, values []Value, constants []string) (a alternative) {
	places := map[string]*place{"o": m.object}
	for i := range steps {
		step := placedStep{Step: &steps[i]}
		path := slices.Clone(step.Path)
		for j, member := range path {
			path[j] = withConstants(member, constants)
		}
		step.from = places[step.Of].locate(path)
		to := &place{}
		places[step.As], step.to = to, to.locate(nil)
		if step.NamedAs != "" {
			step.name, step.namedAs = to.locate([]string{"name"}), places[step.NamedAs].locate([]string{"name"})
		}
		a.steps = append(a.steps, step)
	}
	for _, value := range values {
		var placed []placedSource
		for _, source := range value {
			if text, ok := source.Constant.(string); ok {
				source.Constant = withConstants(text, constants)
			}
			p := placedSource{Source: source}
			if source.Of != "" {
				p.location = places[source.Of].locate(source.Path)
			}
			placed = append(placed, p)
		}
		a.values = append(a.values, placed)
	}
	return a
}

// withConstants returns a text, or the constant for which it stands.
func withConstants(text string, constants []string) string {
	for i, c := range constants {
		if text == "$"+strconv.Itoa(i+1) {
			return c
		}
	}
	return text
}

// rows yields the values of the own columns of each row of an object.
func (m *rowMaker) rows(object []byte) iter.Seq2[[]any, error] {
	m.object.set("", object)
	return func(yield func([]any, error) bool) {
		for i := range m.alternatives {
			if a := &m.alternatives[i]; !m.walk(a, a.steps, yield) {
				return
			}
		}
	}
}

// walk yields the rows of an alternative with each element of the steps that are left. It returns false if yield has.
func (m *rowMaker) walk(a *alternative, left []placedStep, yield func([]any, error) bool) bool {
	if len(left) == 0 {
		return yield(m.row(a))
	}
	step, isEmpty := &left[0], true
	for key, element := range step.elements() {
		step.to.set(key, element)
		if step.NamedAs != "" {
			if name := text(step.name.json()); name == nil || name != text(step.namedAs.json()) {
				continue
			}
		}
		isEmpty = false
		if !m.walk(a, left[1:], yield) {
			return false
		}
	}
	if isEmpty && step.Optional {
		step.to.set("", nil)
		return m.walk(a, left[1:], yield)
	}
	return true
}

// elements yields the keys, under their names in the table, and the JSON of the elements of a step.
func (s *placedStep) elements() iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		if !s.IsObject {
			for element := range transcode.Elements(s.from.json()) {
				if !yield("", element) {
					return
				}
			}
			return
		}
		for key, element := range transcode.Members(s.from.json()) {
			name, ok := key, s.Except == "" || key != s.Except
			if s.Keys != nil {
				name, ok = s.Keys[key]
			}
			if ok && !yield(name, element) {
				return
			}
		}
	}
}

// row makes the values of a row of the elements in the places.
func (m *rowMaker) row(a *alternative) (values []any, err error) {
	values = make([]any, len(a.values))
	for i, sources := range a.values {
		for j := 0; j < len(sources) && values[i] == nil && err == nil; j++ {
			values[i], err = m.value(&m.columns[i], &sources[j])
		}
	}
	return values, err
}

func (m *rowMaker) value(c *Column, s *placedSource) (any, error) {
	switch {
	case s.Of == "":
		return s.Constant, nil
	case s.place.json == nil, s.Key != "" && s.Key != s.key:
		return nil, nil
	case s.IsKey:
		return text([]byte(`"` + s.key + `"`)), nil
	case s.IsResource:
		apiVersion, _ := text(member(s.json(), "apiVersion")).(string)
		kind, _ := text(member(s.json(), "kind")).(string)
		if resource, isServed, err := m.known.ofKind(apiVersion, kind); isServed || err != nil {
			return resource, err
		}
		return nil, nil
	}
	value := c.Value(s.json())
	if s.NotEmpty && value == "" {
		return nil, nil
	}
	return value, nil
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

// selectedBy yields the names of the Pods that an object selects.
func (c *detailCursor) selectedBy(object []byte) iter.Seq2[[]any, error] {
	return func(yield func([]any, error) bool) {
		of := c.Selectors[c.reads.name]
		selector := of.parse(member(object, "spec", of.Member))
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

// parse parses a selector in JSON. Like upstream's, one that is not there selects nothing, and an empty
// one of a map of labels neither.
func (s Selector) parse(data []byte) labels.Selector {
	if s.IsMap {
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
