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

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/client-go/discovery"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/apiserver/handlers/documents"
)

const (
	// discoveryUser is the user that fetches discovery documents, and discoveryTimeout
	// bounds each request; upstream's values
	// (k8s.io/kube-aggregator/pkg/apiserver/handler_discovery.go).
	discoveryUser    = "system:kube-aggregator"
	discoveryTimeout = 5 * time.Second
)

// fetchDiscovery fetches the aggregated document or, from a backend that has none, the
// document of each group version. It returns the result for the given group versions and
// the document's ETag; it ignores what the backend says of other group versions. last is
// the result before, and etag that of the document that last was made from, "" for none.
// A group version that could not be fetched is returned as it is in last, marked as stale.
func (c *client) fetchDiscovery(
	ctx context.Context, gvs []schema.GroupVersion, last discoveryResult, etag string,
) (discoveryResult, string, error) {
	if !last.hasAll(gvs) {
		etag = ""
	}
	answer, err := c.fetch(ctx, fetchRequest{
		path: "/apis", accept: acceptAggregated, etag: etag,
		user: discoveryUser, groups: []string{user.SystemPrivilegedGroup},
		timeout: discoveryTimeout,
	})
	switch {
	case err != nil:
		return last.asStale(gvs), "", err
	case answer.status == http.StatusNotModified && etag != "":
		return last, etag, nil
	case answer.status == http.StatusServiceUnavailable:
		return last.asStale(gvs), "", fmt.Errorf("/apis: %d", answer.status)
	case answer.status == http.StatusOK && isAggregated(answer.header.Get("Content-Type")):
		whole, err := decodeAggregated(answer.body)
		if err != nil {
			return last.asStale(gvs), "", err
		}
		return whole.only(gvs), answer.header.Get("Etag"), nil
	}
	found, errs := last.asStale(gvs), []error(nil)
	for _, gv := range gvs {
		resources, err := c.fetchVersion(ctx, gv)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		found[gv] = resourceList{resources: resources}
	}
	return found, "", errors.Join(errs...)
}

// fetchVersion fetches the discovery document of one group version.
func (c *client) fetchVersion(
	ctx context.Context, gv schema.GroupVersion,
) ([]apidiscoveryv2.APIResourceDiscovery, error) {
	path := "/" + pathOf(gv)
	answer, err := c.fetch(ctx, fetchRequest{
		path: path, accept: runtime.ContentTypeJSON, user: discoveryUser, timeout: discoveryTimeout,
	})
	if err != nil {
		return nil, err
	}
	if answer.status != http.StatusOK {
		return nil, fmt.Errorf("%s: %d", path, answer.status)
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(answer.body, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return endpoints.ConvertGroupVersionIntoToDiscovery(list.APIResources)
}

// discoveryResult has what a backend's discovery says of group versions.
type discoveryResult map[schema.GroupVersion]resourceList

// resourceList are the resources of a group version as the aggregated document has them.
type resourceList struct {
	resources []apidiscoveryv2.APIResourceDiscovery
	// stale is true if the last request for them has failed.
	stale bool
}

// acceptAggregated is the Accept header of requests for the aggregated document. Its two
// versions have the same fields.
const acceptAggregated = discovery.AcceptV2 + "," + acceptV2Beta1

// acceptV2Beta1 is the version of the aggregated document that servers of Kubernetes 1.26 to
// 1.29 have.
const acceptV2Beta1 = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"

func isAggregated(contentType string) bool {
	for _, version := range []string{"v2", "v2beta1"} {
		kind := schema.GroupVersionKind{Group: apidiscoveryv2.GroupName, Version: version, Kind: "APIGroupDiscoveryList"}
		if is, err := discovery.ContentTypeIsGVK(contentType, kind); err == nil && is {
			return true
		}
	}
	return false
}

func decodeAggregated(body []byte) (discoveryResult, error) {
	var list apidiscoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("aggregated discovery: %w", err)
	}
	all := discoveryResult{}
	for _, group := range list.Items {
		for _, version := range group.Versions {
			withKinds(version.Resources)
			all[schema.GroupVersion{Group: group.Name, Version: version.Version}] = resourceList{resources: version.Resources}
		}
	}
	return all, nil
}

// withKinds adds an empty kind where there is none: some clients need one
// (https://github.com/kubernetes/kubernetes/issues/118361).
func withKinds(resources []apidiscoveryv2.APIResourceDiscovery) {
	for i := range resources {
		if resources[i].ResponseKind == nil {
			resources[i].ResponseKind = &metav1.GroupVersionKind{}
		}
		for j := range resources[i].Subresources {
			if sub := &resources[i].Subresources[j]; sub.ResponseKind == nil {
				sub.ResponseKind = &metav1.GroupVersionKind{}
			}
		}
	}
}

// hasAll tells whether the result describes all of the group versions.
func (d discoveryResult) hasAll(gvs []schema.GroupVersion) bool {
	for _, gv := range gvs {
		if _, ok := d[gv]; !ok {
			return false
		}
	}
	return true
}

// asStale returns the given group versions, marked as stale.
func (d discoveryResult) asStale(gvs []schema.GroupVersion) discoveryResult {
	marked := d.only(gvs)
	for gv, list := range marked {
		marked[gv] = resourceList{resources: list.resources, stale: true}
	}
	return marked
}

// only returns the given group versions. Those that the result does not describe have no
// resources.
func (d discoveryResult) only(gvs []schema.GroupVersion) discoveryResult {
	only := discoveryResult{}
	for _, gv := range gvs {
		only[gv] = d[gv]
	}
	return only
}

// merge adds, of the given group versions, those that d lacks and other has.
func (d discoveryResult) merge(other discoveryResult, gvs []schema.GroupVersion) discoveryResult {
	both := discoveryResult{}
	maps.Copy(both, d)
	for _, gv := range gvs {
		if list, ok := other[gv]; ok && !d.hasAll([]schema.GroupVersion{gv}) {
			both[gv] = list
		}
	}
	return both
}

const (
	// openAPIUser is the user that fetches the documents, and openAPITimeout bounds each
	// request; upstream's values.
	openAPIUser    = "system:aggregator"
	openAPITimeout = 20 * time.Second
)

// fetchOpenAPI fetches the OpenAPI documents that have changed since last. If those of one
// OpenAPI version cannot be fetched, it returns last's of that version with the error.
func (c *client) fetchOpenAPI(ctx context.Context, gvs []schema.GroupVersion, last openAPISpecs) (openAPISpecs, error) {
	found, errV2 := c.fetchV2Spec(ctx, gvs, last)
	if errV2 != nil {
		found = last
	}
	v3, errV3 := c.fetchV3Index(ctx, gvs, last.v3)
	if errors.Is(errV3, errNoV3) {
		// The backend is older than Kubernetes 1.23.
		if errV3 = nil; errV2 == nil {
			v3, errV3 = convertV2(found.v2)
		} else {
			v3 = last.v3
		}
	}
	if found.v3 = v3; errV3 != nil {
		found.v3 = last.v3
	}
	return found, errors.Join(errV2, errV3)
}

// errNoV3 says that the backend serves no OpenAPI v3.
var errNoV3 = errors.New("/openapi/v3: 404")

// fetchV3Index fetches the OpenAPI v3 index, and the documents that have changed since
// last.
func (c *client) fetchV3Index(
	ctx context.Context, gvs []schema.GroupVersion, last map[string]v3Spec,
) (map[string]v3Spec, error) {
	index, err := c.fetch(ctx, fetchRequest{
		path: "/openapi/v3", accept: "application/json", user: openAPIUser, timeout: openAPITimeout,
	})
	switch {
	case err != nil:
		return nil, err
	case index.status == http.StatusNotFound:
		return nil, errNoV3
	case index.status != http.StatusOK:
		return nil, fmt.Errorf("/openapi/v3: %d", index.status)
	}
	return c.fetchV3Specs(ctx, gvs, index.body, last)
}

// fetchV2Spec fetches the OpenAPI v2 document. It returns last if that has not changed.
func (c *client) fetchV2Spec(ctx context.Context, gvs []schema.GroupVersion, last openAPISpecs) (openAPISpecs, error) {
	etag, sum := last.etag, last.sum
	for _, gv := range gvs {
		if _, ok := last.v2[gv]; !ok {
			etag, sum = "", [sha256.Size]byte{} // the known document lacks this group version
		}
	}
	answer, err := c.fetch(ctx, fetchRequest{
		path: "/openapi/v2", accept: "application/json", etag: etag, user: openAPIUser, timeout: openAPITimeout,
	})
	switch {
	case err != nil:
		return openAPISpecs{}, err
	case answer.status == http.StatusNotModified && etag != "":
		return last, nil
	case answer.status == http.StatusNotFound:
		return openAPISpecs{}, nil
	case answer.status != http.StatusOK:
		return openAPISpecs{}, fmt.Errorf("/openapi/v2: %d", answer.status)
	}
	found := openAPISpecs{
		etag: answer.header.Get("Etag"),
		sum:  sha256.Sum256(answer.body),
		v2:   map[schema.GroupVersion][]byte{},
	}
	if found.sum == sum {
		return last, nil // the backend sends no ETag
	}
	var whole spec.Swagger
	if err := whole.UnmarshalJSON(answer.body); err != nil {
		return openAPISpecs{}, fmt.Errorf("/openapi/v2: %w", err)
	}
	for _, gv := range gvs {
		if found.v2[gv], err = v2SpecOf(&whole, gv); err != nil {
			return openAPISpecs{}, fmt.Errorf("/openapi/v2: %w", err)
		}
	}
	return found, nil
}

// fetchV3Specs fetches the documents whose location in the index differs from last's. It
// ignores what the index says of group versions that do not lead to the backend.
func (c *client) fetchV3Specs(
	ctx context.Context, gvs []schema.GroupVersion, text []byte, last map[string]v3Spec,
) (map[string]v3Spec, error) {
	var index handler3.OpenAPIV3Discovery
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, fmt.Errorf("/openapi/v3: %w", err)
	}
	found := map[string]v3Spec{}
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
			text, err := c.fetchV3Spec(ctx, path, entry.ServerRelativeURL)
			if err != nil {
				return nil, err
			}
			found[path] = v3Spec{hash: entry.ServerRelativeURL, text: text}
		}
	}
	return found, nil
}

func (c *client) fetchV3Spec(ctx context.Context, path, location string) ([]byte, error) {
	at, err := url.Parse(location)
	if err != nil {
		return nil, fmt.Errorf("/openapi/v3: %s: %w", path, err)
	}
	if at.Host != "" || !strings.HasPrefix(at.Path, "/openapi/v3/") {
		return nil, fmt.Errorf("/openapi/v3: %s is said to be at %q", path, location)
	}
	answer, err := c.fetch(ctx, fetchRequest{
		path: at.Path, query: at.RawQuery, accept: "application/json", user: openAPIUser, timeout: openAPITimeout,
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
	return documents.Compress(answer.body)
}

var errNotJSON = errors.New("the document is not JSON")

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
