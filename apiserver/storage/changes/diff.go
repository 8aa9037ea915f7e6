package changes

import (
	"bytes"
	"cmp"
	"encoding/json"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/storage/transcode"
)

// Difference is the difference of two JSON values at one path.
type Difference struct {
	// path is valid until the next Difference.
	path Path
	// old and new are JSON; one of them is nil if the value did not exist.
	old, new []byte
}

// mostDepth bounds the parts of a path. What differs further down differs as a whole, because each part is read again
// for each object around it.
const mostDepth = 100

// Compare yields the differences of two objects, which are JSON. Elements of lists are compared by their keys (see
// Type.Keys), and by their places where they have none. A list whose elements have other keys than before, or another
// order, differs as a whole. What every write changes is left out: the resourceVersion, the generation and the
// managed fields. Applied to before in their order, the differences give after. What has the same text is not
// decoded: that is most of an object.
func Compare(before, after []byte, types Types) iter.Seq[*Difference] {
	return func(yield func(*Difference) bool) { (&comparison{types: types, yield: yield}).compare(before, after) }
}

// comparison yields the differences of two values at a path. Its methods return false when the reader has stopped.
type comparison struct {
	path  Path
	types Types
	// kind is that of the objects, and of its type once a list has asked for it.
	kind schema.GroupVersionKind
	of   *Type
	// anyOrder ignores the order of elements that have keys.
	anyOrder bool
	yield    func(*Difference) bool
}

// part compares a part of the values at the path. A nil one does not exist.
func (c *comparison) part(p Part, before, after []byte) bool {
	c.path = append(c.path, p)
	defer func() { c.path = c.path[:len(c.path)-1] }()
	if before == nil || after == nil {
		return c.yield(&Difference{c.path, before, after})
	}
	return c.compare(before, after)
}

// typeHere returns the type of the values at the path.
func (c *comparison) typeHere() Type {
	if c.of == nil {
		c.of = new(c.types.of(c.kind))
	}
	of := *c.of
	for _, p := range c.path {
		of = of.Of(p)
	}
	return of
}

func (t Types) of(kind schema.GroupVersionKind) Type {
	if t == nil {
		return Type{}
	}
	return t(kind)
}

// kindOf returns the kind of an object by its fields.
func kindOf(fields map[string][]byte) schema.GroupVersionKind {
	text := func(name string) string {
		if value := fields[name]; len(value) > 0 && value[0] == '"' {
			return Decode(value).(string)
		}
		return ""
	}
	return schema.FromAPIVersionAndKind(text("apiVersion"), text("kind"))
}

func (c *comparison) compare(before, after []byte) bool {
	switch {
	case bytes.Equal(before, after):
		return true
	case len(c.path) == mostDepth:
	case before[0] == '{' && after[0] == '{':
		return c.objects(Fields(before), Fields(after))
	case before[0] == '[' && after[0] == '[':
		return c.lists(before, after)
	}
	before, after = bytes.TrimSpace(before), bytes.TrimSpace(after)
	isEqual := bytes.Equal(before, after) || !hasOneText(before) && !hasOneText(after) &&
		reflect.DeepEqual(Decode(before), Decode(after))
	return isEqual || c.yield(&Difference{c.path, before, after})
}

// hasOneText reports whether a JSON value is a number, true, false or null: those that are written otherwise are
// others.
func hasOneText(value []byte) bool { return !strings.ContainsRune(`"{[`, rune(value[0])) }

// Fields returns the texts of an object's fields.
func Fields(object []byte) map[string][]byte {
	all := make(map[string][]byte)
	for name, value := range transcode.Members(object) {
		if strings.IndexByte(name, '\\') >= 0 {
			name, _ = Decode([]byte(`"` + name + `"`)).(string)
		}
		all[name] = value
	}
	return all
}

func (c *comparison) objects(before, after map[string][]byte) bool {
	if len(c.path) == 0 && c.of == nil {
		c.kind = kindOf(after)
	}
	names := maps.Clone(before)
	maps.Copy(names, after)
	maps.DeleteFunc(names, func(name string, _ []byte) bool {
		return bytes.Equal(before[name], after[name]) || isOfEachWrite(c.path, name)
	})
	for _, name := range slices.SortedFunc(maps.Keys(names), func(a, b string) int {
		return cmp.Or(rank(c.path, a)-rank(c.path, b), strings.Compare(a, b))
	}) {
		if !c.part(Field(name), before[name], after[name]) {
			return false
		}
	}
	return true
}

// isOfEachWrite reports whether every write changes a field of the object at a path.
func isOfEachWrite(path Path, name string) bool {
	return len(path) == 1 && path[0] == Field("metadata") &&
		(name == "resourceVersion" || name == "generation" || name == "managedFields")
}

// rank orders the parts of an object: what people change comes first.
func rank(path Path, name string) int {
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

func (c *comparison) lists(textBefore, textAfter []byte) bool {
	before, after := slices.Collect(transcode.Elements(textBefore)), slices.Collect(transcode.Elements(textAfter))
	of := c.typeHere()
	fieldsBefore, namesBefore := of.Keys(before)
	fieldsAfter, namesAfter := of.Keys(after)
	switch {
	case namesBefore == nil && namesAfter == nil:
		return c.places(before, after)
	case len(before) > 0 && len(after) > 0 && !slices.Equal(fieldsBefore, fieldsAfter),
		!c.anyOrder && !SameOrder(namesBefore, namesAfter):
		return c.yield(&Difference{c.path, bytes.TrimSpace(textBefore), bytes.TrimSpace(textAfter)})
	}
	added := make(map[string]int, len(after))
	for i, name := range namesAfter {
		added[name] = i
	}
	for i, name := range namesBefore {
		var now []byte
		if j, kept := added[name]; kept {
			now = after[j]
			delete(added, name)
		}
		if !c.part(Part{name, i}, before[i], now) {
			return false
		}
	}
	for i, name := range namesAfter {
		if _, isNew := added[name]; isNew && !c.part(Part{name, i}, nil, after[i]) {
			return false
		}
	}
	return true
}

// SameOrder reports whether the names that two lists have both are in the same order in them. A list has a name once.
func SameOrder(a, b []string) bool {
	place := make(map[string]int, len(b))
	for i, name := range b {
		place[name] = i
	}
	last := -1
	for _, name := range a {
		i, isInBoth := place[name]
		switch {
		case !isInBoth:
		case i < last:
			return false
		default:
			last = i
		}
	}
	return true
}

// places compares the elements of two lists by their places.
func (c *comparison) places(before, after [][]byte) bool {
	both := min(len(before), len(after))
	for i := range both {
		if !c.part(Part{Index: i}, before[i], after[i]) {
			return false
		}
	}
	for i := len(before) - 1; i >= both; i-- {
		if !c.part(Part{Index: i}, before[i], nil) {
			return false
		}
	}
	for i := both; i < len(after); i++ {
		if !c.part(Part{Index: i}, nil, after[i]) {
			return false
		}
	}
	return true
}

// FieldText is a Difference as people read it. Old and New are JSON; one of them is empty if the field did not
// exist.
type FieldText struct{ Path, Old, New string }

// Field returns the difference with values that are cut off with "…" after most bytes.
func (d *Difference) Field(most int) FieldText {
	return FieldText{Path: d.path.String(), Old: cut(valueText(d.old), most), New: cut(valueText(d.new), most)}
}

// valueText returns a JSON value as people read it; nothing for nil.
func valueText(value []byte) string {
	switch {
	case value == nil:
		return ""
	case hasOneText(value):
		return string(bytes.TrimSpace(value))
	}
	return string(Encode(Decode(value)))
}

// cut returns a text, cut off with "…" after most bytes.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	end := most
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
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
	if text[0] == '"' { // without the buffers of a decoder
		var s string
		if err := json.Unmarshal(text, &s); err != nil {
			panic(err)
		}
		return s
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		panic(err) // the caller has checked the text
	}
	return value
}

// The texts in place of the values of Secrets are those of "kubectl diff".
const (
	masked       = "***"
	maskedBefore = "*** (before)"
	maskedAfter  = "*** (after)"
)

// CompareMasked is Compare with the values of a Secret masked.
func CompareMasked(group, resource string, before, after []byte, types Types) iter.Seq[*Difference] {
	if IsSecret(group, resource) {
		from, _ := Decode(before).(map[string]any)
		to, _ := Decode(after).(map[string]any)
		from, to = MaskSecret(from, to)
		before, after = Encode(from), Encode(to)
	}
	return Compare(before, after, types)
}

// IsSecret reports whether the objects of a resource are Secrets, whose values are masked where changes are shown.
func IsSecret(group, resource string) bool { return group == "" && resource == "secrets" }

// MaskSecret returns two versions of a Secret with masked values, as "kubectl diff" does: it shows which ones differ.
// The annotation of "kubectl apply", which has them too, is masked as one value. A nil version stays nil, and what
// the caller passes is not changed.
func MaskSecret(before, after map[string]any) (maskedFrom, maskedTo map[string]any) {
	before, after = maps.Clone(before), maps.Clone(after)
	for _, field := range []string{"data", "stringData"} {
		maskValues(cloneField(before, field), cloneField(after, field), func(string) bool { return true })
	}
	maskValues(cloneField(cloneField(before, "metadata"), "annotations"),
		cloneField(cloneField(after, "metadata"), "annotations"),
		func(name string) bool { return name == corev1.LastAppliedConfigAnnotation })
	return before, after
}

// cloneField replaces an object in a field by its copy, which it returns; nil if there is none.
func cloneField(object map[string]any, name string) map[string]any {
	field, isObject := object[name].(map[string]any)
	if !isObject {
		return nil
	}
	field = maps.Clone(field)
	object[name] = field
	return field
}

func maskValues(before, after map[string]any, isSecret func(name string) bool) {
	names := maps.Clone(before)
	if names == nil {
		names = map[string]any{}
	}
	maps.Copy(names, after)
	for name := range names {
		if !isSecret(name) {
			continue
		}
		from, wasThere := before[name]
		to, isThere := after[name]
		textBefore, textAfter := masked, masked
		if wasThere && isThere && !reflect.DeepEqual(from, to) {
			textBefore, textAfter = maskedBefore, maskedAfter
		}
		if wasThere {
			before[name] = textBefore
		}
		if isThere {
			after[name] = textAfter
		}
	}
}
