package instances

import (
	"encoding/json"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"byre/apiserver/storage/transcode"
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
	return hashJSON(cut(make([]byte, 0, len(spec)), spec, specRule))
}

// HashSchema returns a hash of what a schema says of instances.
func HashSchema(schema *apiextensionsv1.CustomResourceValidation) string {
	text, _ := json.Marshal(schema) // API types can be encoded
	return hashJSON(cut(make([]byte, 0, len(text)), text, validationRule))
}

// cut appends what counts of a JSON value, without white space, to out.
func cut(out, text []byte, r *rule) []byte {
	c := cutter{Scanner: transcode.NewScanner(text, 0), in: text, out: out}
	c.value(r)
	return c.out
}

// cutter copies JSON without what does not count. Every byte is read once.
type cutter struct {
	transcode.Scanner
	in, out []byte
}

// value reads a value, and writes what counts of it.
func (c *cutter) value(r *rule) {
	switch start := c.Pos; {
	case r == nil:
		c.SkipValue()
		c.out = append(c.out, c.in[start:c.Pos]...)
	case r.ignored:
		c.SkipValue()
	case c.NextIs('{'):
		c.members(r)
	case c.NextIs('['):
		c.elements(r)
	default:
		c.value(nil)
	}
}

// members reads an object. Of a member that does not count it writes nothing.
func (c *cutter) members(r *rule) {
	c.out = append(c.out, '{')
	for first := len(c.out); c.NextMember(); {
		key := c.ReadKey()
		member, ok := r.named[string(key)]
		if !ok {
			member = r.each
		}
		if member == nil || !member.ignored {
			if len(c.out) > first {
				c.out = append(c.out, ',')
			}
			c.out = append(append(append(c.out, '"'), key...), '"', ':')
		}
		c.value(member)
	}
	c.out = append(c.out, '}')
	c.Pos++
}

// elements reads an array.
func (c *cutter) elements(r *rule) {
	c.out = append(c.out, '[')
	for c.Pos++; c.Pos < len(c.in) && !c.NextIs(']'); {
		if c.NextIs(',') {
			c.out = append(c.out, ',')
			c.Pos++
		}
		c.value(r)
	}
	c.out = append(c.out, ']')
	c.Pos++
}
