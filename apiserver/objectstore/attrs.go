package objectstore

import (
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/storage"
)

// attrs are what selectors look at, in a form that costs little to keep for
// every object in memory: the objects of a resource share the names of their
// fields.
type attrs struct {
	labels labelSet
	fields fieldSet
}

type labelSet []labelPair

type labelPair struct{ key, value string }

var _ labels.Labels = labelSet(nil)

// Lookup implements labels.Labels.
func (l labelSet) Lookup(label string) (string, bool) {
	for i := range l {
		if l[i].key == label {
			return l[i].value, true
		}
	}
	return "", false
}

// Has implements labels.Labels.
func (l labelSet) Has(label string) bool { _, ok := l.Lookup(label); return ok }

// Get implements labels.Labels.
func (l labelSet) Get(label string) string { v, _ := l.Lookup(label); return v }

type fieldSet struct {
	names  []string // sorted, shared
	values []string
}

var _ fields.Fields = fieldSet{}

// Has implements fields.Fields.
func (f fieldSet) Has(field string) bool { return slices.Contains(f.names, field) }

// Get implements fields.Fields.
func (f fieldSet) Get(field string) string {
	if i := slices.Index(f.names, field); i >= 0 {
		return f.values[i]
	}
	return ""
}

// fieldNames keeps the names that the last object's fields had.
type fieldNames struct{ last atomic.Pointer[[]string] }

func (n *fieldNames) of(set fields.Set) []string {
	if last := n.last.Load(); last != nil && len(*last) == len(set) {
		same := true
		for _, name := range *last {
			if _, ok := set[name]; !ok {
				same = false
				break
			}
		}
		if same {
			return *last
		}
	}
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	n.last.Store(&names)
	return names
}

func (n *fieldNames) compact(l labels.Set, f fields.Set) *attrs {
	a := &attrs{}
	if len(l) > 0 {
		a.labels = make(labelSet, 0, len(l))
		for k, v := range l {
			a.labels = append(a.labels, labelPair{k, v})
		}
	}
	if len(f) > 0 {
		a.fields.names = n.of(f)
		a.fields.values = make([]string, len(f))
		for i, name := range a.fields.names {
			a.fields.values[i] = f[name]
		}
	}
	return a
}

func (a *attrs) match(p *storage.SelectionPredicate) bool {
	return (p.Label == nil || p.Label.Matches(a.labels)) && (p.Field == nil || p.Field.Matches(a.fields))
}
