package instances

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"hash"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
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
