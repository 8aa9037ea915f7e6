package crd

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"byre/apiserver/objectstore"
)

// source is a definition as it is stored, with its schemas, at one revision.
// Whatever serves the definition's instances (schemas, checks, types, form) is made
// of one source, so that all of it is of one spec. It is immutable, and costs
// little: the text is the one that the watch cache holds.
type source struct {
	text    objectstore.Encoded
	decoder runtime.Decoder
}

// definition decodes the definition. The result belongs to the caller.
func (s *source) definition() (*apiextensionsv1.CustomResourceDefinition, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	return crd, runtime.DecodeInto(s.decoder, s.text.AppendJSON(make([]byte, 0, s.text.Len()), true), crd)
}

// errReplaced: the stored definition is not the one that instances were made for.
// The table has to be brought up to date, and asked again.
var errReplaced = errors.New("the definition has been replaced")

// sourceOf reads the definition that crd is a stripped state of, and decodes it for
// the caller. It fails with errReplaced if that has another spec by now, or is gone.
func (s *shared) sourceOf(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) (*source, *apiextensionsv1.CustomResourceDefinition, error) {
	from, err := s.read(ctx, crd.Name, crd.ResourceVersion)
	if err != nil {
		return nil, nil, err
	}
	whole, err := from.definition()
	if err != nil {
		return nil, nil, err
	}
	if whole.UID != crd.UID || whole.Generation != crd.Generation && hashSpec(whole) != crd.Annotations[specHash] {
		return nil, nil, errReplaced
	}
	return from, whole, nil
}

// Hashes of a definition's spec, as annotations of a stripped definition. They are
// never stored: what is written of a stripped definition is its status and its
// finalizers; see statusClient.
const (
	// specHash is of the whole spec. A change of the generation alone (as by the
	// begin of a delete) leaves it as it is.
	specHash = "crd.byre/spec"
	// documentHash is of what the documents of OpenAPI depend on: all but the
	// conversion, whose certificates change now and then.
	documentHash = "crd.byre/document"
)

func hashSpec(crd *apiextensionsv1.CustomResourceDefinition) string { return hashOf(crd.Spec) }

func hashDocument(crd *apiextensionsv1.CustomResourceDefinition) string {
	spec := crd.Spec
	spec.Conversion = nil
	return hashOf(spec)
}

// hashOf is a hash of values' JSON, which the types of an API always have.
func hashOf(values ...any) string {
	h := sha256.New()
	for _, value := range values {
		data, _ := json.Marshal(value)
		h.Write(append(data, '\n'))
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:12])
}

// strip takes out of a definition what is large and seldom needed: source has it.
// What remains tells who serves which requests, and is all that the controllers
// look at. It keeps the schemas of a definition from before apiextensions v1: a
// condition tells whether they are structural. It may be called again.
func strip(crd *apiextensionsv1.CustomResourceDefinition) {
	if isStripped(crd) {
		return
	}
	crd.ManagedFields = nil
	if crd.Annotations == nil {
		crd.Annotations = map[string]string{}
	}
	delete(crd.Annotations, lastApplied)
	crd.Annotations[specHash], crd.Annotations[documentHash] = hashSpec(crd), hashDocument(crd)
	if crd.Spec.PreserveUnknownFields {
		return
	}
	for i := range crd.Spec.Versions {
		crd.Spec.Versions[i].Schema = nil
	}
}

// isStripped relies on validation: there is a schema in every version of a
// definition that does not preserve unknown fields.
func isStripped(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return crd.Annotations[specHash] != "" && !crd.Spec.PreserveUnknownFields &&
		!slices.ContainsFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Schema != nil })
}
