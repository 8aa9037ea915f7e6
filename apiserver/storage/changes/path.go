package changes

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	smdschema "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// Path leads from an object to a value in it.
type Path []Part

// Part leads from a value to one in it: to a field of an object, or to an element of a list.
type Part struct {
	// Name is the name of a field, or what tells an element of a list from the others, such as name=a; empty for an
	// element that only its place tells.
	Name string
	// Index is the place of an element in its list; -1 for a field.
	Index int
}

// Field returns the part that leads to a field.
func Field(name string) Part { return Part{name, -1} }

// mostPath and mostName bound a path, and a name in it, in bytes.
const (
	mostPath = 1 << 10
	mostName = 256
)

// String returns the path as people write it: spec.containers[name=a].image, spec.args[0], or
// metadata.labels["app.kubernetes.io/name"]. What is long is cut off with "…".
func (p Path) String() string {
	var b strings.Builder
	for _, part := range p {
		text := part.text(mostName)
		if b.Len() > 0 && text[0] != '[' {
			b.WriteByte('.')
		}
		b.WriteString(text)
	}
	return cut(b.String(), mostPath)
}

// text returns the part as a path has it, with names of most bytes. The texts of a field and of an element differ.
func (p Part) text(most int) string {
	name := cut(p.Name, most)
	switch {
	case p.Index >= 0 && name == "":
		return "[" + strconv.Itoa(p.Index) + "]"
	case p.Index >= 0:
		return "[" + name + "]"
	case name == "" || strings.ContainsAny(name, ".[]\"'/ \n"):
		return "[" + string(Encode(name)) + "]"
	}
	return name
}

// Type is the type of a value in a schema. A Type of which nothing is known is zero.
type Type struct {
	schema *smdschema.Schema
	ref    smdschema.TypeRef
}

// Types returns the type of the objects of a kind. A nil one knows no type.
type Types func(schema.GroupVersionKind) Type

// TypeOf returns the type of the objects of a kind, as server-side apply has it.
func TypeOf(converter managedfields.TypeConverter, kind schema.GroupVersionKind) Type {
	empty := &unstructured.Unstructured{Object: map[string]any{}}
	empty.SetGroupVersionKind(kind)
	converted, err := converter.ObjectToTyped(empty, typed.AllowDuplicates)
	if err != nil {
		return Type{} // the schema does not have the kind
	}
	return Type{converted.Schema(), converted.TypeRef()}
}

func (t Type) atom() smdschema.Atom {
	if t.schema == nil {
		return smdschema.Atom{}
	}
	atom, _ := t.schema.Resolve(t.ref) // zero if the schema lacks it
	return atom
}

// Of returns the type of the value to which a part leads.
func (t Type) Of(p Part) Type {
	switch atom := t.atom(); {
	case p.Index >= 0 && atom.List != nil:
		return Type{t.schema, atom.List.ElementType}
	case p.Index < 0 && atom.Map != nil:
		if field, known := atom.Map.FindField(p.Name); known {
			return Type{t.schema, field.Type}
		}
		return Type{t.schema, atom.Map.ElementType}
	}
	return Type{}
}

// wellKnown are fields by which people tell elements apart, where no schema says which.
var wellKnown = [][]string{
	{"name"}, {"type"}, {"uid"}, {"key"}, {"containerPort"}, {"port"}, {"ip"}, {"mountPath"},
}

// mostKeyed is the length of the longest list whose elements have keys.
const mostKeyed = 10_000

// Keys returns the fields that tell the elements of a list of the type apart, and the name of each element by them,
// such as name=a or port=53,protocol=UDP. They are the keys of the schema, and the first of wellKnown where the schema
// has none or the elements lack them. Both are nil if only the place tells an element. The elements are JSON.
func (t Type) Keys(elements [][]byte) (fields, names []string) {
	if len(elements) > mostKeyed || slices.ContainsFunc(elements, func(e []byte) bool { return e[0] != '{' }) {
		return nil, nil
	}
	candidates := wellKnown
	if list := t.atom().List; list != nil && len(list.Keys) > 0 {
		candidates = slices.Concat([][]string{list.Keys}, wellKnown)
	}
	objects := make([]map[string][]byte, len(elements))
	for i, element := range elements {
		objects[i] = Fields(element)
	}
	for _, fields = range candidates {
		if names = namesBy(fields, objects); len(names) > 0 {
			return fields, names
		}
	}
	return nil, nil
}

// namesBy returns the name of each object by fields; nil if one lacks a field, or two have one name.
func namesBy(fields []string, objects []map[string][]byte) []string {
	names, seen := make([]string, len(objects)), make(map[string]bool, len(objects))
	for i, object := range objects {
		var parts []string
		for _, field := range fields {
			text := keyText(object[field])
			if text == "" {
				return nil
			}
			parts = append(parts, field+"="+text)
		}
		names[i] = strings.Join(parts, ",")
		if seen[names[i]] {
			return nil
		}
		seen[names[i]] = true
	}
	return names
}

// keyText returns the value of a key as a path has it: a text has quotes only where it needs them. It is empty for a
// value that is no key.
func keyText(value []byte) string {
	if len(value) == 0 || value[0] == '{' || value[0] == '[' || value[0] == 'n' {
		return ""
	}
	text, isText := Decode(value).(string)
	switch {
	case !isText:
		return strings.TrimSpace(string(value))
	case text == "" || strings.ContainsAny(text, `[]=,"'\ `) || json.Valid([]byte(text)) ||
		strings.ContainsFunc(text, unicode.IsControl):
		return string(Encode(text))
	}
	return text
}
