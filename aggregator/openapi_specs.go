package aggregator

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/apiserver/handlers/documents"
)

// openAPISpecs are what the OpenAPI documents of a backend say of its group versions. They
// are immutable.
type openAPISpecs struct {
	// etag and sum are of the OpenAPI v2 document, v2 has what it says of each group
	// version, compressed.
	etag string
	sum  [sha256.Size]byte
	v2   map[schema.GroupVersion][]byte
	// v3 has the OpenAPI v3 specs by path, such as "apis/widgets.example.com/v1".
	v3 map[string]v3Spec
}

// v3Spec is an OpenAPI v3 document.
type v3Spec struct {
	// hash changes whenever the document does. It is the document's location in the
	// backend's index, which contains a hash, or the SHA-512 of a converted document.
	hash string
	text []byte // compressed
}

// v2SpecOf returns what an OpenAPI v2 document says of a group version, compressed. It
// fails if that part cannot be encoded as protobuf, which clients may ask for: otherwise
// the faulty part of one backend would make the merged document of all servers fail.
func v2SpecOf(whole *spec.Swagger, gv schema.GroupVersion) ([]byte, error) {
	part := aggregator.FilterSpecByPathsWithoutSideEffects(whole, []string{"/" + pathOf(gv) + "/"})
	text, err := part.MarshalJSON()
	if err != nil {
		return nil, err
	}
	if _, err := documents.ToProtobufV2(text); err != nil {
		return nil, err
	}
	return documents.Compress(text)
}

// pathOf is the path of a group version and of its OpenAPI v3 document.
func pathOf(gv schema.GroupVersion) string { return groupPath(gv) + "/" + gv.Version }

func groupPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api"
	}
	return "apis/" + gv.Group
}

// convertV2 converts OpenAPI v2 specs to v3, as far as v2 can express what v3 has.
func convertV2(v2 map[schema.GroupVersion][]byte) (map[string]v3Spec, error) {
	converted := map[string]v3Spec{}
	for gv, part := range v2 {
		swagger, err := unpackV2(part)
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(openapiconv.ConvertV2ToV3(swagger))
		if err != nil {
			return nil, err
		}
		packed, err := documents.Compress(text)
		if err != nil {
			return nil, err
		}
		converted[pathOf(gv)] = v3Spec{hash: fmt.Sprintf("%X", sha512.Sum512(text)), text: packed}
	}
	return converted, nil
}

func unpackV2(packed []byte) (*spec.Swagger, error) {
	text, err := documents.Decompress(packed)
	if err != nil {
		return nil, err
	}
	var swagger spec.Swagger
	return &swagger, swagger.UnmarshalJSON(text)
}

// source returns the specs of one group version for this server's documents; an empty
// source if there are none.
func (s openAPISpecs) source(gv schema.GroupVersion) documents.Source {
	source := documents.Source{V3: map[string]documents.Document{}}
	if part := s.v2[gv]; part != nil {
		source.V2 = func(_ context.Context, add func([]byte) error) error {
			text, err := documents.Decompress(part)
			if err != nil {
				return err
			}
			return add(text)
		}
		source.V2Hash = documents.Hash(string(part))
	}
	for _, path := range []string{pathOf(gv), groupPath(gv)} {
		if v3, ok := s.v3[path]; ok {
			source.V3[path] = documents.Document{
				Hash: fmt.Sprintf("%X", sha512.Sum512(v3.text)),
				JSON: func(context.Context) ([]byte, error) { return documents.Decompress(v3.text) },
			}
		}
	}
	return source
}

// merge adds, of the given group versions, the specs that s lacks and other has.
func (s openAPISpecs) merge(other openAPISpecs, gvs []schema.GroupVersion) openAPISpecs {
	both := openAPISpecs{etag: s.etag, sum: s.sum, v2: map[schema.GroupVersion][]byte{}, v3: map[string]v3Spec{}}
	maps.Copy(both.v2, s.v2)
	maps.Copy(both.v3, s.v3)
	for _, gv := range gvs {
		if part, ok := other.v2[gv]; ok && both.v2[gv] == nil {
			// s's ETag is of a document without this group version.
			both.v2[gv], both.etag, both.sum = part, "", [sha256.Size]byte{}
		}
		for _, path := range []string{pathOf(gv), groupPath(gv)} {
			if v3, ok := other.v3[path]; ok && both.v3[path].text == nil {
				both.v3[path] = v3
			}
		}
	}
	return both
}

// isSame tells whether two have the same specs of a group version.
func (s openAPISpecs) isSame(other openAPISpecs, gv schema.GroupVersion) bool {
	return string(s.v2[gv]) == string(other.v2[gv]) &&
		s.v3[pathOf(gv)].hash == other.v3[pathOf(gv)].hash &&
		s.v3[groupPath(gv)].hash == other.v3[groupPath(gv)].hash
}
