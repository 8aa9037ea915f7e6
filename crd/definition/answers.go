package definition

import (
	"bytes"
	"encoding/json"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// A change of a definition's spec that changes no answer for its instances ends no watch.
//
// Upstream tears down the handlers and ends the watches at each change of the spec. Clients
// lose nothing by that, but all controllers of a resource list and watch again, each time a
// certificate is rotated or a description is improved. What is kept open here are watches
// only. What upstream's clients see otherwise is the same: the webhook is called with the
// new certificates and is asked anew, and the OpenAPI documents have the new descriptions.
//
// Everything counts except what is known to change no answer: the texts of schemas, and the
// certificate authorities of the conversion webhook. Descriptions of printer columns count,
// for they are in tables.

// rule says what of a JSON value counts. A nil rule means all of it. The elements of an
// array have the rule of the array.
type rule struct {
	// ignored means that the value does not count.
	ignored bool
	// named has the rules of an object's members by name. each is the rule of the others.
	named map[string]*rule
	each  *rule
}

var (
	ignored    = &rule{ignored: true}
	schemaRule = newSchemaRule()
	// validationRule is of a version's schema.
	validationRule = &rule{named: map[string]*rule{"openAPIV3Schema": schemaRule}}
	specRule       = &rule{named: map[string]*rule{
		"conversion": {named: map[string]*rule{
			"webhook": {named: map[string]*rule{
				"clientConfig": {named: map[string]*rule{"caBundle": ignored}},
			}},
		}},
		"versions": {named: map[string]*rule{"schema": validationRule}},
	}}
)

// newSchemaRule makes the rule of JSONSchemaProps.
func newSchemaRule() *rule {
	schema := &rule{}
	schemas := &rule{each: schema}
	schema.named = map[string]*rule{
		"title": ignored, "description": ignored, "example": ignored, "externalDocs": ignored,
		"items": schema, "additionalItems": schema, "additionalProperties": schema, "not": schema,
		"allOf": schema, "anyOf": schema, "oneOf": schema,
		"properties": schemas, "patternProperties": schemas, "definitions": schemas, "dependencies": schemas,
	}
	return schema
}

// HashSpec computes the SpecHash of a definition with its schemas.
func HashSpec(crd *apiextensionsv1.CustomResourceDefinition) string {
	spec, _ := json.Marshal(crd.Spec) // API types can be encoded
	return HashSpecJSON(spec)
}

// HashSpecJSON is HashSpec of the JSON of a spec, as encoding/json makes it.
func HashSpecJSON(spec []byte) string { return HashJSON(cut(spec, specRule)) }

// HashSchema returns a hash of what a schema says of instances.
func HashSchema(schema *apiextensionsv1.CustomResourceValidation) string {
	text, _ := json.Marshal(schema) // API types can be encoded
	return HashJSON(cut(text, validationRule))
}

// cut returns what counts of a JSON value without white space.
func cut(text []byte, r *rule) []byte {
	c := cutter{in: text, out: make([]byte, 0, len(text))}
	c.value(r)
	return c.out
}

// cutter copies JSON without what does not count. Every byte is read once.
type cutter struct {
	in, out []byte
	at      int
}

// value reads a value, and writes what counts of it.
func (c *cutter) value(r *rule) {
	start := c.at
	switch {
	case r == nil || r.ignored:
		c.skip()
		if r == nil {
			c.out = append(c.out, c.in[start:c.at]...)
		}
	case c.peek() == '{':
		c.list('}', func() {
			keyStart := c.at
			c.skip()
			key := c.in[keyStart:c.at]
			c.at++ // the colon
			member, ok := r.named[string(bytes.Trim(key, `"`))]
			if !ok {
				member = r.each
			}
			if member == nil || !member.ignored {
				c.out = append(append(c.out, key...), ':')
			}
			c.value(member)
		})
	case c.peek() == '[':
		c.list(']', func() { c.value(r) })
	default:
		c.value(nil)
	}
}

// list reads an object or an array up to its end by calling item for each member or element.
// Of an item that does not count it writes nothing.
func (c *cutter) list(end byte, item func()) {
	c.out = append(c.out, c.in[c.at])
	first := len(c.out)
	for c.at++; c.peek() != end && c.peek() != 0; {
		before := len(c.out)
		if before > first {
			c.out = append(c.out, ',')
		}
		separated := len(c.out)
		if item(); len(c.out) == separated {
			c.out = c.out[:before]
		}
		if c.peek() == ',' {
			c.at++
		}
	}
	c.out = append(c.out, end)
	c.at++
}

// skip reads a value.
func (c *cutter) skip() {
	switch c.peek() {
	case '"':
		c.skipString()
	case '{', '[':
		for depth := 0; ; {
			switch c.peek() {
			case 0:
				return
			case '"':
				c.skipString()
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			if c.at++; depth == 0 {
				return
			}
		}
	default:
		for c.at < len(c.in) && bytes.IndexByte([]byte(",]}"), c.in[c.at]) < 0 {
			c.at++
		}
	}
}

func (c *cutter) skipString() {
	for start := c.at + 1; ; {
		next := bytes.IndexByte(c.in[c.at+1:], '"')
		if next < 0 {
			c.at = len(c.in)
			return
		}
		c.at += 1 + next
		backslashes := c.at - start - len(bytes.TrimRight(c.in[start:c.at], `\`))
		if backslashes%2 == 0 {
			c.at++
			return
		}
	}
}

// peek returns the next byte, or 0 at the end.
func (c *cutter) peek() byte {
	if c.at < len(c.in) {
		return c.in[c.at]
	}
	return 0
}
