package changes

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"byre/apiserver/storage/jsontext"
)

// Difference is the difference of two JSON values at one path. Each part of the path is the name
// of a field, or the index of an element.
type Difference struct {
	path     []any
	old, new any
	// added and removed say that old and new do not exist.
	added, removed bool
}

// Compare returns the differences of two objects, which are JSON. Elements of lists are compared by their
// index. What every write changes is left out: the resourceVersion, the generation and the managed fields.
// Applied to before in their order, the differences give after. What has the same text is not decoded: that
// is most of an object.
func Compare(before, after []byte) []Difference { return compare(nil, nil, before, after) }

// compare appends the differences of two JSON values.
func compare(all []Difference, path []any, before, after []byte) []Difference {
	switch {
	case bytes.Equal(before, after):
		return all
	case before[0] == '{' && after[0] == '{':
		return compareObjects(all, path, Fields(before), Fields(after))
	case before[0] == '[' && after[0] == '[':
		return compareLists(all, path, slices.Collect(jsontext.Elements(before)), slices.Collect(jsontext.Elements(after)))
	}
	was, is := Decode(before), Decode(after)
	if reflect.DeepEqual(was, is) {
		return all
	}
	return append(all, Difference{path: path, old: was, new: is})
}

// Fields returns the texts of an object's fields.
func Fields(object []byte) map[string][]byte {
	all := make(map[string][]byte)
	for name, value := range jsontext.Members(object) {
		if strings.IndexByte(name, '\\') >= 0 {
			name, _ = Decode([]byte(`"` + name + `"`)).(string)
		}
		all[name] = value
	}
	return all
}

func compareObjects(all []Difference, path []any, before, after map[string][]byte) []Difference {
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
			all = append(all, Difference{path: at, new: Decode(is), added: true})
		case !exists:
			all = append(all, Difference{path: at, old: Decode(was), removed: true})
		default:
			all = compare(all, at, was, is)
		}
	}
	return all
}

// isOfEachWrite reports whether every write changes a field of the metadata.
func isOfEachWrite(name string) bool {
	return name == "resourceVersion" || name == "generation" || name == "managedFields"
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

func compareLists(all []Difference, path []any, before, after [][]byte) []Difference {
	at := func(i int) []any { return append(slices.Clip(path), i) }
	both := min(len(before), len(after))
	for i := range both {
		all = compare(all, at(i), before[i], after[i])
	}
	for i := len(before) - 1; i >= both; i-- {
		all = append(all, Difference{path: at(i), old: Decode(before[i]), removed: true})
	}
	for i := both; i < len(after); i++ {
		all = append(all, Difference{path: at(i), new: Decode(after[i]), added: true})
	}
	return all
}

// Field is a Difference as people read it. Old and New are JSON; one of them is empty if the field did not
// exist.
type Field struct{ Path, Old, New string }

// Field returns the difference with values that are cut off with "…" after most bytes.
func (d *Difference) Field(most int) Field {
	f := Field{Path: pathText(d.path)}
	if !d.added {
		f.Old = text(d.old, most)
	}
	if !d.removed {
		f.New = text(d.new, most)
	}
	return f
}

// mostName bounds the name of a field in a path, in bytes.
const mostName = 256

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
			b.WriteString("[" + text(name, mostName) + "]")
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
	encoded := string(Encode(value))
	if len(encoded) <= most {
		return encoded
	}
	end := most
	for !utf8.RuneStart(encoded[end]) {
		end--
	}
	return encoded[:end] + "…"
}

// Encode returns the JSON of a decoded value.
func Encode(value any) []byte {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err) // decoded JSON can be encoded
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// Decode decodes a valid JSON value, and keeps its numbers as they are.
func Decode(text []byte) (value any) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		panic(err) // the caller has checked the text
	}
	return value
}
