package oracle

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
)

// generator makes random schemas and values, the same ones for the same seed.
type generator struct{ *rand.Rand }

func newGenerator(seed uint64) generator { return generator{rand.New(rand.NewPCG(seed, 0))} }

type object = map[string]any

// chance is true in one of n cases.
func (g generator) chance(n int) bool { return g.IntN(n) == 0 }

func pick[T any](g generator, from ...T) T { return from[g.IntN(len(from))] }

// schema makes a schema whose parts nest up to a depth. Most are valid.
func (g generator) schema(depth int) object {
	makers := []func() object{g.stringSchema, g.stringSchema, g.numberSchema, g.intOrString, g.boolean}
	if depth > 0 {
		nested := []func(int) object{
			g.objectSchema, g.objectSchema, g.mapSchema, g.listSchema, g.listSchema, g.embedded, g.preserving,
		}
		makers = append(makers, func() object {
			return pick(g, nested...)(depth - 1)
		}, func() object { return pick(g, nested...)(depth - 1) },
			func() object { return pick(g, nested...)(depth - 1) }, func() object { return pick(g, nested...)(depth - 1) })
	}
	schema := pick(g, makers...)()
	if g.chance(5) {
		schema["nullable"] = true
	}
	if g.chance(40) {
		maps.Copy(schema,
			pick(g, object{"uniqueItems": true}, object{"$ref": "#/a"}, object{"x-kubernetes-list-type": "map"},
				object{"default": "hello"},
				object{"x-kubernetes-map-type": "granular"}, object{"pattern": "(("}, object{"type": "widget"},
				object{"required": []any{"hello", "hello"}}, rules(object{"rule": "self.hello"})))
	}
	return schema
}

func rules(all ...object) object {
	list := make([]any, len(all))
	for i := range all {
		list[i] = all[i]
	}
	return object{"x-kubernetes-validations": list}
}

func (g generator) stringSchema() object {
	s := object{"type": "string"}
	if g.chance(2) {
		s["maxLength"] = 1 + g.IntN(6)
	}
	switch g.IntN(6) {
	case 0:
		s["enum"] = []any{"a", "ab", "abc"}
	case 1:
		s["pattern"] = pick(g, "^[a-c]+$", "b", "^a?b?c?$")
	case 2:
		s["format"] = pick(g, "date", "date-time", "ipv4", "ipv6", "uuid", "byte", "email", "hostname", "cidr", "duration",
			"hello")
	case 3:
		s["minLength"] = 1 + g.IntN(3)
	case 4:
		s["maxLength"] = 8
		maps.Copy(s, g.stringRules())
	}
	if g.chance(4) {
		s["default"] = pick(g, "a", "ab", "abc")
	}
	return s
}

func (g generator) stringRules() object {
	return pick(g,
		rules(object{"rule": "self.startsWith('a')", "message": "begins otherwise"}),
		rules(object{"rule": "self == oldSelf", "reason": "FieldValueForbidden"}),
		rules(object{"rule": "!oldSelf.hasValue() || self.size() >= oldSelf.value().size()", "optionalOldSelf": true,
			"messageExpression": "'not shorter than ' + self"}),
		rules(object{"rule": "self.matches('^[ab]*$')", "messageExpression": "self + ' has other letters'"},
			object{"rule": "self.size() < 3"}),
	)
}

func (g generator) numberSchema() object {
	s := object{"type": pick(g, "integer", "integer", "number")}
	switch g.IntN(6) {
	case 0:
		s["minimum"], s["maximum"] = 0, 5
	case 1:
		s["multipleOf"] = 2
	case 2:
		s["maximum"], s["exclusiveMaximum"] = 4, true
	case 3:
		s["enum"] = []any{1, 2, 3}
	case 4:
		maps.Copy(s,
			pick(g, rules(object{"rule": "self >= oldSelf", "message": "may only grow"}),
				rules(object{"rule": "self != type(self)(3)"}), rules(object{"rule": "self < self + type(self)(1)"})))
	}
	if s["type"] == "integer" && g.chance(3) {
		s["format"] = pick(g, "int32", "int64")
	}
	if g.chance(4) {
		s["default"] = 1 + g.IntN(3)
	}
	return s
}

func (g generator) boolean() object {
	s := object{"type": "boolean"}
	if g.chance(3) {
		s["default"] = true
	}
	return s
}

func (g generator) intOrString() object {
	s := object{"x-kubernetes-int-or-string": true}
	switch g.IntN(3) {
	case 0:
		s["anyOf"] = []any{object{"type": "integer"}, object{"type": "string"}}
		s["pattern"] = "^[0-9]+%$"
	case 1:
		maps.Copy(s, rules(object{"rule": "type(self) == int ? self < 5 : self == '5%'"}))
	}
	return s
}

var fieldsOf = []string{"a", "b", "c", "d"}

func (g generator) objectSchema(depth int) object {
	properties := object{}
	for _, name := range fieldsOf[:1+g.IntN(len(fieldsOf))] {
		properties[name] = g.schema(depth)
	}
	s := object{"type": "object", "properties": properties}
	if g.chance(3) {
		s["required"] = []any{pick(g, slices.Sorted(maps.Keys(properties))...)}
	}
	switch g.IntN(8) {
	case 0:
		s["x-kubernetes-preserve-unknown-fields"] = true
	case 1:
		s["x-kubernetes-map-type"] = "atomic"
	case 2:
		s["default"] = object{}
	case 3:
		s["minProperties"] = 1
	case 4:
		maps.Copy(s, pick(g,
			rules(object{"rule": "has(self.a)", "message": "a is missing", "fieldPath": ".a", "reason": "FieldValueRequired"}),
			rules(object{"rule": "!has(oldSelf.a) || has(self.a)", "message": "a may not go"}),
			rules(object{"rule": "has(self.a) || !oldSelf.hasValue()", "optionalOldSelf": true}),
		))
	case 5:
		s["anyOf"] = []any{object{"required": []any{"a"}}, object{"required": []any{"b"}}}
	case 6:
		s["not"] = object{"required": []any{"a"}}
	}
	return s
}

func (g generator) mapSchema(depth int) object {
	s := object{"type": "object", "additionalProperties": g.schema(depth), "maxProperties": 3}
	if g.chance(4) {
		maps.Copy(s, rules(object{"rule": "self.all(k, k != 'b')", "message": "b is no key"}))
	}
	return s
}

func (g generator) listSchema(depth int) object {
	s := object{"type": "array", "maxItems": 4}
	switch g.IntN(3) {
	case 0:
		items := g.stringSchema()
		delete(items, "nullable")
		s["items"], s["x-kubernetes-list-type"] = items, "set"
	case 1:
		items := g.objectSchema(depth)
		items["properties"].(object)["a"] = object{"type": pick(g, "string", "integer"), "maxLength": 5}
		if items["properties"].(object)["a"].(object)["type"] == "integer" {
			items["properties"].(object)["a"] = object{"type": "integer"}
		}
		items["required"] = []any{"a"}
		delete(items, "default")
		s["items"], s["x-kubernetes-list-type"], s["x-kubernetes-list-map-keys"] = items, "map", []any{"a"}
	default:
		s["items"] = g.schema(depth)
		if g.chance(2) {
			s["x-kubernetes-list-type"] = "atomic"
		}
	}
	if g.chance(4) {
		maps.Copy(s,
			pick(g, rules(object{"rule": "self.size() > 1"}),
				rules(object{"rule": "self.size() >= oldSelf.size()", "message": "nothing may go"})))
	}
	if g.chance(5) {
		s["minItems"] = 1
	}
	return s
}

func (g generator) embedded(depth int) object {
	s := object{"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}
	if g.chance(2) {
		s["properties"] = object{"spec": g.schema(depth)}
	}
	return s
}

func (g generator) preserving(depth int) object {
	s := object{"x-kubernetes-preserve-unknown-fields": true}
	if g.chance(2) {
		s["type"] = "object"
		s["properties"] = object{"a": g.schema(depth)}
	}
	return s
}

// value makes a value for a schema. Many are valid.
func (g generator) value(schema object) any {
	if g.chance(30) {
		return pick[any](g, nil, "hello", 7, 1.5, true, []any{}, object{})
	}
	switch {
	case schema["x-kubernetes-int-or-string"] == true:
		return pick[any](g, 3, 8, "5%", "hello")
	case schema["x-kubernetes-embedded-resource"] == true:
		return g.embeddedValue(schema)
	case schema["enum"] != nil && !g.chance(6):
		return pick(g, schema["enum"].([]any)...)
	}
	switch schema["type"] {
	case "string":
		return g.text(schema)
	case "integer":
		return g.IntN(7)
	case "number":
		return pick[any](g, 1, 2.5, 4.0, -1)
	case "boolean":
		return g.chance(2)
	case "array":
		items, _ := schema["items"].(object)
		list := make([]any, g.IntN(4))
		for i := range list {
			list[i] = g.value(items)
		}
		return list
	}
	return g.objectValue(schema)
}

func (g generator) text(schema object) string {
	switch schema["format"] {
	case "date":
		return pick(g, "2030-01-01", "tomorrow")
	case "date-time":
		return pick(g, "2030-01-01T00:00:00Z", "2030-13-01T00:00:00Z")
	case "ipv4", "ipv6", "cidr":
		return pick(g, "192.0.2.1", "2001:db8::1", "192.0.2.0/24", "hello")
	case "duration":
		return pick(g, "1h", "hello")
	}
	return pick(g, "a", "ab", "abc", "b", "bcd", "", "abcdefgh", "naïve", "a@b.c", "YQ==")
}

func (g generator) objectValue(schema object) object {
	o := object{}
	properties, _ := schema["properties"].(object)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if !g.chance(4) {
			o[name] = g.value(properties[name].(object))
		}
	}
	if each, ok := schema["additionalProperties"].(object); ok {
		for _, name := range fieldsOf[:g.IntN(4)] {
			o[name] = g.value(each)
		}
	}
	if g.chance(4) {
		o["unknown"] = pick[any](g, 1, "x", nil, object{"a": []any{1, nil}})
	}
	return o
}

func (g generator) embeddedValue(schema object) object {
	o := g.objectValue(schema)
	o["apiVersion"], o["kind"] = pick(g, "v1", "example.com/v1"), "Pod"
	o["metadata"] = object{"name": pick(g, "a", "A_"), "labels": object{"a": pick[any](g, "b", "b", 1)}, "hello": true}
	if g.chance(5) {
		delete(o, pick(g, "apiVersion", "kind"))
	}
	return o
}

// tightened returns a copy of the schema that accepts fewer values.
func (g generator) tightened(schema object) object {
	text, err := json.Marshal(schema)
	if err != nil {
		panic(fmt.Sprintf("generated what is no JSON: %v", err))
	}
	var tight object
	if err := json.Unmarshal(text, &tight); err != nil {
		panic(fmt.Sprintf("generated what is no JSON: %v", err))
	}
	g.tighten(tight)
	return tight
}

func (g generator) tighten(schema object) {
	switch schema["type"] {
	case "string":
		if schema["default"] == nil && g.chance(2) {
			schema["maxLength"] = 1
		}
	case "integer", "number":
		if schema["default"] == nil && g.chance(2) {
			schema["maximum"] = 2
		}
	case "array":
		g.tighten(schema["items"].(object))
	case "object":
		for _, name := range slices.Sorted(maps.Keys(schema)) {
			if inner, ok := schema[name].(object); ok && name == "additionalProperties" {
				g.tighten(inner)
			}
		}
		properties, _ := schema["properties"].(object)
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			g.tighten(properties[name].(object))
		}
	}
}
