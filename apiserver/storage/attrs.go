package storage

import (
	"maps"
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
)

// labelSet holds the labels of one object. It takes less memory than a map, because one
// is kept for every object in memory.
type labelSet []sqlstore.Label

var _ labels.Labels = labelSet(nil)

// Lookup implements labels.Labels.
func (l labelSet) Lookup(label string) (string, bool) {
	for i := range l {
		if l[i].Key == label {
			return l[i].Value, true
		}
	}
	return "", false
}

// Has implements labels.Labels.
func (l labelSet) Has(label string) bool { _, ok := l.Lookup(label); return ok }

// Get implements labels.Labels.
func (l labelSet) Get(label string) string { v, _ := l.Lookup(label); return v }

// fieldSet holds the selectable fields of one object, in little memory.
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

// fieldNames keeps the field names of the last object. Objects of one resource nearly
// always have the same names, so their field sets share one slice.
type fieldNames struct{ last atomic.Pointer[[]string] }

// of returns the names of the fields of set, sorted. The slice is shared.
func (n *fieldNames) of(set fields.Set) []string {
	if last := n.last.Load(); last != nil && len(*last) == len(set) &&
		!slices.ContainsFunc(*last, func(name string) bool { return !set.Has(name) }) {
		return *last
	}
	names := slices.Sorted(maps.Keys(set))
	n.last.Store(&names)
	return names
}

// compact makes the attributes that are kept of an object with these labels and fields.
func (n *fieldNames) compact(view string, l labels.Set, f fields.Set) *sqlstore.Attributes {
	var found labelSet
	if len(l) > 0 {
		found = make(labelSet, 0, len(l))
		for k, v := range l {
			found = append(found, sqlstore.Label{Key: k, Value: v})
		}
	}
	a := newAttributes(view, found)
	a.Fields = []string{}
	if len(f) > 0 {
		a.Fields = n.of(f)
		a.Values = make([]string, len(f))
		for i, name := range a.Fields {
			a.Values[i] = f[name]
		}
	}
	return a
}

func matchAttributes(p *storage.SelectionPredicate, a *sqlstore.Attributes) bool {
	return (p.Label == nil || p.Label.Matches(labelSet(a.Labels))) && (p.Field == nil || p.Field.Matches(fieldSetOf(a)))
}

func fieldSetOf(a *sqlstore.Attributes) fieldSet { return fieldSet{a.Fields, a.Values} }
