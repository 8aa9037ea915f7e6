package client

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"byre/apiserver/storage/changes"
)

// Operation is one of a JSON patch (RFC 6902).
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
	// Field is the path of the field as people read it.
	Field string `json:"-"`
}

// state is the value of a field, if there is one.
type state struct {
	value  any
	exists bool
}

func (s state) is(other state) bool {
	return s.exists == other.exists && (!s.exists || reflect.DeepEqual(s.value, other.value))
}

// fields returns the fields of an object, and none of what does not exist. ok is false for another value.
func (s state) fields() (fields map[string]any, ok bool) {
	fields, ok = s.value.(map[string]any)
	return fields, ok || !s.exists
}

// elements returns the elements of a list, and none of what does not exist. ok is false for another value.
func (s state) elements() (elements []any, ok bool) {
	elements, ok = s.value.([]any)
	return elements, ok || !s.exists
}

func stateOf(fields map[string]any, name string) state {
	value, exists := fields[name]
	return state{value, exists}
}

// place is where a value is in an object: for a patch, for people, and in the schema.
type place struct {
	pointer string
	path    changes.Path
	of      changes.Type
}

func (p place) field(name string) place {
	part := changes.Field(name)
	return place{p.pointer + "/" + pointerEscape.Replace(name), append(slices.Clip(p.path), part), p.of.Of(part)}
}

func (p place) element(name string, index int) place {
	part := changes.Part{Name: name, Index: index}
	return place{p.pointer + "/" + strconv.Itoa(index), append(slices.Clip(p.path), part), p.of.Of(part)}
}

// reversal makes a patch that reverses what a change has made of an object, field by field, and tests that nobody has
// changed these fields since. What others have changed beside them stays. Elements of lists are told by their keys; a
// list whose elements have none, or have got another order, is one field, and so is an element that the change has
// added or removed.
type reversal struct {
	patch []Operation
	// later are the paths of the fields that others have changed too.
	later []string
	// adds is true if the patch adds something, of which no operation can test that it is still absent.
	adds bool
}

// differences returns the operations that make an object of a type another one.
func differences(of changes.Type, from, to map[string]any) []Operation {
	r := reversal{}
	now := runtime.DeepCopyJSON(from) // value changes it
	r.value(place{of: of}, state{now, true}, state{from, true}, state{to, true})
	return r.patch
}

// fieldsOf returns the paths of the fields that operations change.
func fieldsOf(patch []Operation) (paths []string) {
	for _, o := range patch {
		if o.Op != "test" {
			paths = append(paths, o.Field)
		}
	}
	return paths
}

// value reverses the difference between a value after and before a change. now is the value as it is; value changes
// and returns it.
func (r *reversal) value(at place, now, after, before state) state {
	if after.is(before) || now.is(before) {
		return now
	}
	isOne := now.is(after) && (!after.exists || !before.exists)
	if !isOne {
		if reversed, ok := r.fields(at, now, after, before); ok {
			return reversed
		}
		if reversed, ok := r.elements(at, now, after, before); ok {
			return reversed
		}
	}
	if now.is(after) {
		return r.set(at, now, before)
	}
	r.later = append(r.later, at.path.String())
	return now
}

// set makes a value what it was.
func (r *reversal) set(at place, now, before state) state {
	path := at.path.String()
	if now.exists {
		r.patch = append(r.patch, Operation{"test", at.pointer, now.value, path})
	}
	switch {
	case !now.exists:
		r.adds = true
		r.patch = append(r.patch, Operation{"add", at.pointer, before.value, path})
	case !before.exists:
		r.patch = append(r.patch, Operation{Op: "remove", Path: at.pointer, Field: path})
	default:
		r.patch = append(r.patch, Operation{"replace", at.pointer, before.value, path})
	}
	return before
}

// fields reverses the differences of objects; ok is false if not all are objects.
func (r *reversal) fields(at place, now, after, before state) (reversed state, ok bool) {
	n, isObject := now.fields()
	a, wasObject := after.fields()
	b, wasObjectBefore := before.fields()
	if !isObject || !wasObject || !wasObjectBefore {
		return now, false
	}
	names := map[string]any{}
	maps.Copy(names, a)
	maps.Copy(names, b)
	if !now.exists {
		return r.missing(at, names, a, b), true
	}
	had := len(n)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if value := r.value(at.field(name), stateOf(n, name), stateOf(a, name), stateOf(b, name)); value.exists {
			n[name] = value.value
		} else {
			delete(n, name)
		}
	}
	if !before.exists && len(n) == 0 && had > 0 {
		return r.set(at, now, before), true
	}
	return now, true
}

// missing reverses the differences of objects where somebody has removed the whole object since: it has the fields
// again that the change has removed.
func (r *reversal) missing(at place, names, after, before map[string]any) state {
	removed := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		is, was := stateOf(after, name), stateOf(before, name)
		switch {
		case is.is(was), !was.exists:
		case is.exists:
			r.later = append(r.later, at.field(name).path.String())
		default:
			removed[name] = was.value
		}
	}
	if len(removed) == 0 {
		return state{}
	}
	return r.set(at, state{}, state{removed, true})
}

// keysOf returns the keys and names of the elements of a list; see changes.Type.Keys.
func keysOf(of changes.Type, list []any) (keys, names []string) {
	elements := make([][]byte, len(list))
	for i := range list {
		elements[i] = changes.Encode(list[i])
	}
	return of.Keys(elements)
}

// elements reverses the differences of lists; ok is false if not all are lists whose elements have the same keys.
func (r *reversal) elements(at place, now, after, before state) (reversed state, ok bool) {
	var lists [3][]any // now, after, before
	var names [3][]string
	var keys []string
	for i, s := range []state{now, after, before} {
		list, isList := s.elements()
		of, named := keysOf(at.of, list)
		if !isList || len(list) > 0 && (named == nil || keys != nil && !slices.Equal(keys, of)) {
			return now, false
		}
		if len(list) > 0 {
			keys = of
		}
		lists[i], names[i] = slices.Clone(list), named
	}
	if !now.exists || !changes.SameOrder(names[1], names[2]) {
		return now, false
	}
	e := elementReversal{reversal: r, at: at, keys: keys, list: lists[0], names: names[0]}
	for i, name := range names[1] {
		e.reverse(name, state{lists[1][i], true}, elementOf(lists[2], names[2], name), names[2])
	}
	for i, name := range names[2] {
		if !slices.Contains(names[1], name) {
			e.reverse(name, state{}, state{lists[2][i], true}, names[2])
		}
	}
	reversed = state{e.list, true}
	if !before.exists && len(e.list) == 0 && len(lists[0]) > 0 {
		return r.set(at, reversed, before), true
	}
	return reversed, true
}

func elementOf(list []any, names []string, name string) state {
	if i := slices.Index(names, name); i >= 0 {
		return state{list[i], true}
	}
	return state{}
}

// elementReversal reverses the differences of the elements of a list. list and names are those of the list as the
// patch makes it.
type elementReversal struct {
	*reversal
	at    place
	keys  []string
	list  []any
	names []string
}

// reverse reverses the difference of an element. order are the names of the list before the change.
func (e *elementReversal) reverse(name string, after, before state, order []string) {
	i := slices.Index(e.names, name)
	now := elementOf(e.list, e.names, name)
	element := e.at.element(name, max(i, 0))
	switch {
	case after.is(before), now.is(before):
	case now.exists && after.exists && before.exists:
		begin := len(e.patch)
		e.list[i] = e.value(element, now, after, before).value
		if len(e.patch) > begin {
			e.patch = slices.Insert(e.patch, begin, e.tests(i)...)
		}
	case now.is(after) && now.exists:
		e.set(element, now, before)
		e.list, e.names = slices.Delete(e.list, i, i+1), slices.Delete(e.names, i, i+1)
	case now.is(after):
		i = 0
		for _, earlier := range slices.Backward(order[:slices.Index(order, name)]) {
			if at := slices.Index(e.names, earlier); at >= 0 {
				i = at + 1 // after the last one that is still there of those that were before it
				break
			}
		}
		e.set(e.at.element(name, i), now, before)
		e.list, e.names = slices.Insert(e.list, i, before.value), slices.Insert(e.names, i, name)
	case now.exists && after.exists: // the change has added it
		is, _ := now.value.(map[string]any)
		was, _ := after.value.(map[string]any)
		for _, field := range fieldsOf(differences(element.of, was, is)) {
			separator := "."
			if strings.HasPrefix(field, "[") {
				separator = ""
			}
			e.later = append(e.later, element.path.String()+separator+field)
		}
	default:
		e.later = append(e.later, element.path.String())
	}
}

// tests returns the tests that an element is the one that its keys say.
func (e *elementReversal) tests(i int) (tests []Operation) {
	fields, _ := e.list[i].(map[string]any)
	for _, key := range e.keys {
		at := e.at.element(e.names[i], i).field(key)
		tests = append(tests, Operation{"test", at.pointer, fields[key], at.path.String()})
	}
	return tests
}

var (
	pointerEscape   = strings.NewReplacer("~", "~0", "/", "~1")
	pointerUnescape = strings.NewReplacer("~1", "/", "~0", "~")
)
