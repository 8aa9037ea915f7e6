package history

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// difference is the difference of two JSON values at one path. Each part of the path is the name
// of a field, or the index of an element.
type difference struct {
	path     []any
	old, new any
	// added and removed say that old and new do not exist.
	added, removed bool
}

// compare appends the differences of two decoded JSON values, whose numbers are json.Numbers.
// Elements of lists are compared by their index. Applied to old in their order, the differences
// give new.
func compare(all []difference, path []any, before, after any) []difference {
	switch before := before.(type) {
	case map[string]any:
		if after, ok := after.(map[string]any); ok {
			return compareObjects(all, path, before, after)
		}
	case []any:
		if after, ok := after.([]any); ok {
			return compareLists(all, path, before, after)
		}
	}
	if reflect.DeepEqual(before, after) {
		return all
	}
	return append(all, difference{path: path, old: before, new: after})
}

// Compare returns the fields in which two versions of an object differ, as Change.Changed has them, but
// all of them, and with whole values. It removes from both what every write changes. A nil version is
// that of an object that does not exist.
func Compare(before, after map[string]any) []FieldChange {
	all := compareVersions(before, after)
	changes := make([]FieldChange, len(all))
	for i := range all {
		changes[i] = all[i].fieldChange(math.MaxInt)
	}
	return changes
}

// compareVersions compares two versions of an object, from which it removes what every write changes.
func compareVersions(before, after map[string]any) []difference {
	for _, object := range []map[string]any{before, after} {
		if metadata, ok := object["metadata"].(map[string]any); ok {
			delete(metadata, "resourceVersion")
			delete(metadata, "generation")
		}
	}
	return compare(nil, nil, before, after)
}

func compareObjects(all []difference, path []any, before, after map[string]any) []difference {
	names := make(map[string]any)
	maps.Copy(names, before)
	maps.Copy(names, after)
	for _, name := range slices.SortedFunc(maps.Keys(names), func(a, b string) int {
		return cmp.Or(rank(path, a)-rank(path, b), strings.Compare(a, b))
	}) {
		at := append(slices.Clip(path), name)
		was, existed := before[name]
		is, exists := after[name]
		switch {
		case existed && exists:
			all = compare(all, at, was, is)
		default:
			all = append(all, difference{path: at, old: was, new: is, added: !existed, removed: !exists})
		}
	}
	return all
}

// rank orders the parts of an object: what people change comes first.
func rank(path []any, name string) int {
	switch {
	case len(path) > 0:
		return 0
	case name == "metadata":
		return 1
	case name == "status":
		return 2
	}
	return 0
}

func compareLists(all []difference, path []any, before, after []any) []difference {
	at := func(i int) []any { return append(slices.Clip(path), i) }
	both := min(len(before), len(after))
	for i := range both {
		all = compare(all, at(i), before[i], after[i])
	}
	for i := len(before) - 1; i >= both; i-- {
		all = append(all, difference{path: at(i), old: before[i], removed: true})
	}
	for i := both; i < len(after); i++ {
		all = append(all, difference{path: at(i), new: after[i], added: true})
	}
	return all
}

// mostText bounds the old and the new value of a FieldChange, in bytes.
const mostText = 256

// fieldChange returns a difference, whose values are cut off after most bytes.
func (d *difference) fieldChange(most int) FieldChange {
	change := FieldChange{Path: pathText(d.path)}
	if !d.added {
		change.Old = text(d.old, most)
	}
	if !d.removed {
		change.New = text(d.new, most)
	}
	return change
}

// pathText returns a path as people write it: spec.containers[0].image, or
// metadata.labels["app.kubernetes.io/name"].
func pathText(path []any) string {
	var b strings.Builder
	for _, part := range path {
		name, isName := part.(string)
		switch {
		case !isName:
			b.WriteString("[" + strconv.Itoa(part.(int)) + "]")
		case name == "" || strings.ContainsAny(name, ".[]\"'/ \n"):
			b.WriteString("[" + text(name, mostText) + "]")
		default:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(name)
		}
	}
	return b.String()
}

// text returns the JSON of a value, cut off after most bytes.
func text(value any, most int) string {
	encoded := string(encode(value))
	if len(encoded) <= most {
		return encoded
	}
	end := most
	for !utf8.RuneStart(encoded[end]) {
		end--
	}
	return encoded[:end] + "…"
}

// encode returns the JSON of a decoded value.
func encode(value any) []byte {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err) // decoded JSON can be encoded
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// decode decodes a JSON object, and keeps its numbers as they are.
func decode(data []byte) (object map[string]any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	err = decoder.Decode(&object)
	return object, err
}
