package aggregator

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/apiserver/handlers/documents"
)

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
func (c *client) fetchV3Index(ctx context.Context, gvs []schema.GroupVersion, last map[string]v3Spec) (map[string]v3Spec, error) {
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
func (c *client) fetchV3Specs(ctx context.Context, gvs []schema.GroupVersion, text []byte, last map[string]v3Spec) (map[string]v3Spec, error) {
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
