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

	"byre/apiserver/storage/jsontext"
)

// difference is the difference of two JSON values at one path. Each part of the path is the name
// of a field, or the index of an element.
type difference struct {
	path     []any
	old, new any
	// added and removed say that old and new do not exist.
	added, removed bool
}

// compare appends the differences of two JSON values. Elements of lists are compared by their index.
// Applied to old in their order, the differences give new. What has the same text is not decoded: that is
// most of an object.
func compare(all []difference, path []any, before, after []byte) []difference {
	switch {
	case bytes.Equal(before, after):
		return all
	case before[0] == '{' && after[0] == '{':
		return compareObjects(all, path, fieldsOf(before), fieldsOf(after))
	case before[0] == '[' && after[0] == '[':
		return compareLists(all, path, slices.Collect(jsontext.Elements(before)), slices.Collect(jsontext.Elements(after)))
	}
	was, is := decode(before), decode(after)
	if reflect.DeepEqual(was, is) {
		return all
	}
	return append(all, difference{path: path, old: was, new: is})
}

// Compare returns the fields in which two versions of an object differ, as Change.Changed has them, but
// all of them, and with whole values. A nil version is that of an object that does not exist.
func Compare(before, after map[string]any) ([]FieldChange, error) {
	texts := [2][]byte{[]byte("{}"), []byte("{}")}
	for i, version := range []map[string]any{before, after} {
		if version == nil {
			continue
		}
		text, err := json.Marshal(version)
		if err != nil {
			return nil, err
		}
		texts[i] = text
	}
	all := compare(nil, nil, texts[0], texts[1])
	changes := make([]FieldChange, len(all))
	for i := range all {
		changes[i] = all[i].fieldChange(math.MaxInt)
	}
	return changes, nil
}

// fieldsOf returns the texts of an object's fields.
func fieldsOf(object []byte) map[string][]byte {
	all := make(map[string][]byte)
	for name, value := range jsontext.Members(object) {
		if strings.IndexByte(name, '\\') >= 0 {
			name, _ = decode([]byte(`"` + name + `"`)).(string)
		}
		all[name] = value
	}
	return all
}

func compareObjects(all []difference, path []any, before, after map[string][]byte) []difference {
	names := maps.Clone(before)
	maps.Copy(names, after)
	maps.DeleteFunc(names, func(name string, _ []byte) bool {
		return bytes.Equal(before[name], after[name]) || len(path) == 1 && path[0] == "metadata" && isOfEachWrite(name)
	})
	for _, name := range slices.SortedFunc(maps.Keys(names), func(a, b string) int {
		return cmp.Or(rank(path, a)-rank(path, b), strings.Compare(a, b))
	}) {
		at := append(slices.Clip(path), name)
		was, existed := before[name]
		is, exists := after[name]
		switch {
		case !existed:
			all = append(all, difference{path: at, new: decode(is), added: true})
		case !exists:
			all = append(all, difference{path: at, old: decode(was), removed: true})
		default:
			all = compare(all, at, was, is)
		}
	}
	return all
}

// isOfEachWrite reports whether every write changes a field of the metadata.
func isOfEachWrite(name string) bool {
	return name == "resourceVersion" || name == "generation" || name == managedFields
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

func compareLists(all []difference, path []any, before, after [][]byte) []difference {
	at := func(i int) []any { return append(slices.Clip(path), i) }
	both := min(len(before), len(after))
	for i := range both {
		all = compare(all, at(i), before[i], after[i])
	}
	for i := len(before) - 1; i >= both; i-- {
		all = append(all, difference{path: at(i), old: decode(before[i]), removed: true})
	}
	for i := both; i < len(after); i++ {
		all = append(all, difference{path: at(i), new: decode(after[i]), added: true})
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

// decode decodes a valid JSON value, and keeps its numbers as they are.
func decode(text []byte) (value any) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		panic(err) // the caller has checked the text
	}
	return value
}
