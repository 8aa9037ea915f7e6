package aggregator

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/apiserver/openapi"
)

// documents are what a backend's OpenAPI documents say of its group versions.
type documents struct {
	// tag and sum are of the document of version 2, parts what it says of each
	// group version, compressed.
	tag   string
	sum   [sha256.Size]byte
	parts map[schema.GroupVersion][]byte
	// v3 has the documents of version 3 by path, "apis/cows.example.com/v1".
	v3 map[string]document
}

// document is a document of version 3.
type document struct {
	hash string
	text []byte // compressed
}

const (
	// openAPIUser is in whose name documents are asked for; upstream's.
	openAPIUser    = "system:aggregator"
	openAPITimeout = 20 * time.Second
	// maxOpenAPI bounds what is read of a document, in bytes. That of all of
	// Kubernetes has four megabytes.
	maxOpenAPI = 8 << 20
)

// document asks for the documents, as far as they have changed since last. Those of
// the version that can't be had stay as they were.
func (b *backend) document(ctx context.Context, gvs []schema.GroupVersion, last documents) (documents, error) {
	found, errV2 := b.documentV2(ctx, gvs, last)
	if errV2 != nil {
		found = last
	}
	v3, errV3 := b.indexV3(ctx, gvs, last.v3)
	if errors.Is(errV3, errNoV3) {
		// A server of before Kubernetes 1.23.
		if errV3 = nil; errV2 == nil {
			v3, errV3 = convert(found.parts)
		} else {
			v3 = last.v3
		}
	}
	if found.v3 = v3; errV3 != nil {
		found.v3 = last.v3
	}
	return found, errors.Join(errV2, errV3)
}

// errNoV3: the backend has no documents of version 3.
var errNoV3 = errors.New("/openapi/v3: 404")

// indexV3 asks for the documents of version 3.
func (b *backend) indexV3(ctx context.Context, gvs []schema.GroupVersion, last map[string]document) (map[string]document, error) {
	index, err := b.get(ctx, question{
		path: "/openapi/v3", accept: "application/json", user: openAPIUser, timeout: openAPITimeout, limit: maxOpenAPI,
	})
	switch {
	case err != nil:
		return nil, err
	case index.status == http.StatusNotFound:
		return nil, errNoV3
	case index.status != http.StatusOK:
		return nil, fmt.Errorf("/openapi/v3: %d", index.status)
	}
	return b.documentsV3(ctx, gvs, index.body, last)
}

// documentV2 asks for the document of version 2.
func (b *backend) documentV2(ctx context.Context, gvs []schema.GroupVersion, last documents) (documents, error) {
	tag, sum := last.tag, last.sum
	for _, gv := range gvs {
		if _, ok := last.parts[gv]; !ok {
			tag, sum = "", [sha256.Size]byte{} // what is kept does not say
		}
	}
	answer, err := b.get(ctx, question{
		path: "/openapi/v2", accept: "application/json", tag: tag, user: openAPIUser, timeout: openAPITimeout, limit: maxOpenAPI,
	})
	switch {
	case err != nil:
		return documents{}, err
	case answer.status == http.StatusNotModified && tag != "":
		return last, nil
	case answer.status == http.StatusNotFound:
		return documents{}, nil
	case answer.status != http.StatusOK:
		return documents{}, fmt.Errorf("/openapi/v2: %d", answer.status)
	}
	found := documents{
		tag:   answer.header.Get("Etag"),
		sum:   sha256.Sum256(answer.body),
		parts: map[schema.GroupVersion][]byte{},
	}
	if found.sum == sum {
		return last, nil // from a server that has no tags
	}
	var whole spec.Swagger
	if err := whole.UnmarshalJSON(answer.body); err != nil {
		return documents{}, fmt.Errorf("/openapi/v2: %w", err)
	}
	for _, gv := range gvs {
		if found.parts[gv], err = partOf(&whole, gv); err != nil {
			return documents{}, fmt.Errorf("/openapi/v2: %w", err)
		}
	}
	return found, nil
}

// partOf is what a document of version 2 says of a group version. What could not
// be sent on in every form that clients may ask for is refused here, where it
// spoils nobody else's part.
func partOf(whole *spec.Swagger, gv schema.GroupVersion) ([]byte, error) {
	part := aggregator.FilterSpecByPathsWithoutSideEffects(whole, []string{"/" + pathOf(gv) + "/"})
	text, err := part.MarshalJSON()
	if err != nil {
		return nil, err
	}
	if _, err := handler.ToProtoBinary(text); err != nil {
		return nil, err
	}
	return openapi.Compress(text)
}

// pathOf is the path of a group version, and of its document of version 3.
func pathOf(gv schema.GroupVersion) string { return groupPath(gv) + "/" + gv.Version }

func groupPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api"
	}
	return "apis/" + gv.Group
}

// documentsV3 asks for those documents that the index says are new. What it says
// of others' group versions is not heard.
func (b *backend) documentsV3(ctx context.Context, gvs []schema.GroupVersion, text []byte, last map[string]document) (map[string]document, error) {
	var index handler3.OpenAPIV3Discovery
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, fmt.Errorf("/openapi/v3: %w", err)
	}
	found := map[string]document{}
	for _, gv := range gvs {
		for _, path := range []string{pathOf(gv), groupPath(gv)} {
			entry, ok := index.Paths[path]
			if !ok {
				continue
			}
			if known := last[path]; known.hash == entry.ServerRelativeURL {
				found[path] = known
				continue
			}
			text, err := b.documentV3(ctx, path, entry.ServerRelativeURL)
			if err != nil {
				return nil, err
			}
			found[path] = document{hash: entry.ServerRelativeURL, text: text}
		}
	}
	return found, nil
}

func (b *backend) documentV3(ctx context.Context, path, location string) ([]byte, error) {
	at, err := url.Parse(location)
	if err != nil {
		return nil, fmt.Errorf("/openapi/v3: %s: %w", path, err)
	}
	if at.Host != "" || !strings.HasPrefix(at.Path, "/openapi/v3/") {
		return nil, fmt.Errorf("/openapi/v3: %s is said to be at %q", path, location)
	}
	answer, err := b.get(ctx, question{
		path: at.Path, query: at.RawQuery, accept: "application/json", user: openAPIUser, timeout: openAPITimeout, limit: maxOpenAPI,
	})
	if err != nil {
		return nil, err
	}
	if answer.status != http.StatusOK {
		return nil, fmt.Errorf("%s: %d", at.Path, answer.status)
	}
	if !json.Valid(answer.body) {
		return nil, fmt.Errorf("%s: %w", at.Path, errNotJSON)
	}
	return openapi.Compress(answer.body)
}

var errNotJSON = errors.New("the document is not JSON")

// convert makes documents of version 3 out of those of version 2, as far as
// these say enough.
func convert(parts map[schema.GroupVersion][]byte) (map[string]document, error) {
	converted := map[string]document{}
	for gv, part := range parts {
		swagger, err := unpackV2(part)
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(openapiconv.ConvertV2ToV3(swagger))
		if err != nil {
			return nil, err
		}
		packed, err := openapi.Compress(text)
		if err != nil {
			return nil, err
		}
		converted[pathOf(gv)] = document{hash: fmt.Sprintf("%X", sha512.Sum512(text)), text: packed}
	}
	return converted, nil
}

func unpackV2(packed []byte) (*spec.Swagger, error) {
	text, err := openapi.Decompress(packed)
	if err != nil {
		return nil, err
	}
	var swagger spec.Swagger
	return &swagger, swagger.UnmarshalJSON(text)
}

// source is what there is of one group version, for this server's documents. It
// is empty if there is nothing.
func (d documents) source(gv schema.GroupVersion) openapi.Source {
	source := openapi.Source{V3: map[string]openapi.Document{}}
	if part := d.parts[gv]; part != nil {
		source.V2 = func(context.Context) (*spec.Swagger, error) { return unpackV2(part) }
		source.V2Hash = openapi.Hash(string(part))
	}
	for _, path := range []string{pathOf(gv), groupPath(gv)} {
		if v3, ok := d.v3[path]; ok {
			source.V3[path] = openapi.Document{
				Hash: fmt.Sprintf("%X", sha512.Sum512(v3.text)),
				JSON: func(context.Context) ([]byte, error) { return openapi.Decompress(v3.text) },
			}
		}
	}
	return source
}

// with is d with what it lacks of the group versions as other has it.
func (d documents) with(other documents, gvs []schema.GroupVersion) documents {
	both := documents{tag: d.tag, sum: d.sum, parts: map[schema.GroupVersion][]byte{}, v3: map[string]document{}}
	maps.Copy(both.parts, d.parts)
	maps.Copy(both.v3, d.v3)
	for _, gv := range gvs {
		if part, ok := other.parts[gv]; ok && both.parts[gv] == nil {
			// Not known by the tag that is kept.
			both.parts[gv], both.tag, both.sum = part, "", [sha256.Size]byte{}
		}
		for _, path := range []string{pathOf(gv), groupPath(gv)} {
			if document, ok := other.v3[path]; ok && both.v3[path].text == nil {
				both.v3[path] = document
			}
		}
	}
	return both
}

// same says whether two say the same of a group version.
func (d documents) same(other documents, gv schema.GroupVersion) bool {
	return string(d.parts[gv]) == string(other.parts[gv]) &&
		d.v3[pathOf(gv)].hash == other.v3[pathOf(gv)].hash &&
		d.v3[groupPath(gv)].hash == other.v3[groupPath(gv)].hash
}
