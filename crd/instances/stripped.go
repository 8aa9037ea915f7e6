package instances

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"hash"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"byre/apiserver/storage/transcode"
)

// Hashes of a definition's spec, as annotations of a stripped definition. They are
// never stored: of a stripped definition only the status and the finalizers are written.
const (
	// SpecHash is of what the answers for instances depend on: the spec without the texts of
	// schemas and the certificate authorities of the webhook.
	SpecHash = "crd.byre/spec"
	// OpenAPIHash is of what the OpenAPI documents depend on: the spec without its
	// conversion, whose certificates are rotated.
	OpenAPIHash = "crd.byre/document"
)

// HashOpenAPI computes the OpenAPIHash of a definition with its schemas.
func HashOpenAPI(crd *apiextensionsv1.CustomResourceDefinition) string {
	spec := crd.Spec
	spec.Conversion = nil
	return Hash(spec)
}

// Hash returns a hash of the JSON of values. The values must be API types, whose encoding
// does not fail.
func Hash(values ...any) string {
	h := sha256.New()
	for _, value := range values {
		data, _ := json.Marshal(value)
		h.Write(append(data, '\n'))
	}
	return encodeHash(h)
}

// hashJSON is Hash of one value with this JSON.
func hashJSON(text []byte) string {
	h := sha256.New()
	h.Write(text)
	h.Write([]byte{'\n'})
	return encodeHash(h)
}

func encodeHash(h hash.Hash) string { return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:12]) }

// Strip removes from a definition what is large and seldom needed: schemas, managed
// fields and kubectl's copy of the definition. What remains tells who serves which
// requests and is all that upstream's controllers look at. Definitions that preserve
// unknown fields (from before apiextensions v1) keep their schemas: a controller checks
// whether they are structural.
func Strip(crd *apiextensionsv1.CustomResourceDefinition) {
	crd.ManagedFields = nil
	setHashes(crd, HashOpenAPI(crd), HashSpec(crd))
	if crd.Spec.PreserveUnknownFields {
		return
	}
	for i := range crd.Spec.Versions {
		crd.Spec.Versions[i].Schema = nil
	}
}

// setHashes gives a stripped definition its hashes, in place of kubectl's copy of the
// definition.
func setHashes(crd *apiextensionsv1.CustomResourceDefinition, openAPI, spec string) {
	if crd.Annotations == nil {
		crd.Annotations = map[string]string{}
	}
	delete(crd.Annotations, corev1.LastAppliedConfigAnnotation)
	crd.Annotations[OpenAPIHash], crd.Annotations[SpecHash] = openAPI, spec
}

// Source decodes one stored state of a definition, with its schemas. Every call decodes
// the bytes again; the result belongs to the caller.
//
// Invariant: whatever serves a definition's instances (schemas, validation, types of
// managed fields, Encoding) derives from one Source, and so from one spec.
type Source func() (*apiextensionsv1.CustomResourceDefinition, error)

// SourceReader reads definitions as they are stored.
type SourceReader interface {
	// Source returns a state of the definition that is not older than resourceVersion.
	// It fails with ErrReplaced if there is no definition of that name.
	Source(ctx context.Context, name, resourceVersion string) (Source, error)
	// IsReplaced reports whether the definition is another one in the watch cache, or has another SpecHash, than crd,
	// which is stripped. One that is gone was not replaced: watches still show the last states of its instances.
	IsReplaced(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) (bool, error)
}

// ErrReplaced says that the stored definition has another SpecHash than the one that was
// asked about, or is gone. The caller looks the definition up again.
var ErrReplaced = errors.New("the definition has been replaced")

// ReadSource returns the source of crd, which is stripped, and what it decodes to. It
// fails with ErrReplaced if the stored definition has another SpecHash by now, or is gone.
func ReadSource(
	ctx context.Context, r SourceReader, crd *apiextensionsv1.CustomResourceDefinition,
) (Source, *apiextensionsv1.CustomResourceDefinition, error) {
	source, err := r.Source(ctx, crd.Name, crd.ResourceVersion)
	if err != nil {
		return nil, nil, err
	}
	whole, err := source()
	if err != nil {
		return nil, nil, err
	}
	if whole.UID != crd.UID || whole.Generation != crd.Generation && HashSpec(whole) != crd.Annotations[SpecHash] {
		return nil, nil, ErrReplaced
	}
	return source, whole, nil
}

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
