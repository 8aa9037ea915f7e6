package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"byre/apiserver/options"
	"byre/sqlstore"
)

// CompactPath is the path of the request that compacts the history. It is no resource: RBAC grants
// it by nonResourceURLs, as to cluster-admin.
const CompactPath = "/byre/compact"

// compactTime bounds the work of one request. A client repeats the request until it is done.
const compactTime = 20 * time.Second

// CompactResult is the answer to a POST of CompactPath.
type CompactResult struct {
	// Done is false if the request must be repeated.
	Done bool `json:"done"`
	// CompactedRevision is the last revision whose history is gone, if Done.
	CompactedRevision int64 `json:"compactedRevision,omitempty"`
	// SizeBytes is the size of the database afterwards, if Done.
	SizeBytes int64 `json:"sizeBytes,omitempty"`
	// Kept are the resources that keep their history for longer than others, and have kept it.
	Kept []string `json:"kept,omitempty"`
}

// Compact compacts the history of a store that is older than keep, for as long as ctx allows. resource
// is as in --retention-for; if it is empty, resources that keep their history for longer than others keep
// it. If there is none of that name, Compact fails with a BadRequest.
func Compact(ctx context.Context, store *sqlstore.Store, keep time.Duration, resource string) (CompactResult, error) {
	of := schema.ParseGroupResource(resource)
	c := sqlstore.Compaction{Keep: keep, Of: sqlstore.GroupResource{Group: of.Group, Resource: of.Resource}}
	if resource != "" {
		histories, err := store.Histories(ctx)
		if err != nil {
			return CompactResult{}, err
		}
		if !slices.ContainsFunc(histories, func(h sqlstore.History) bool { return c.Of.Selects(h.Resource) }) {
			return CompactResult{}, apierrors.NewBadRequest(unknownResource(resource, histories))
		}
	}
	revision, kept, err := store.CompactOlder(ctx, c)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		return CompactResult{}, nil
	}
	if err != nil {
		return CompactResult{}, err
	}
	result := CompactResult{Done: true, CompactedRevision: revision}
	for _, of := range kept {
		result.Kept = append(result.Kept, of.String())
	}
	result.SizeBytes, err = store.Size(ctx)
	return result, err
}

// serveCompact answers a POST of CompactPath with the parameters keep and resource.
func (s *storageBackend) serveCompact(w http.ResponseWriter, req *http.Request) {
	result, err := s.compact(req)
	if err != nil {
		responsewriters.ErrorNegotiated(err, legacyscheme.Codecs, schema.GroupVersion{Version: "v1"}, w, req)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(result) // fails only if the client has gone
}

func (s *storageBackend) compact(req *http.Request) (CompactResult, error) {
	if req.Method != http.MethodPost {
		return CompactResult{}, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "compact"}, req.Method)
	}
	keep, err := options.ParseDuration(req.URL.Query().Get("keep"))
	if err != nil || keep < 0 {
		return CompactResult{}, apierrors.NewBadRequest("keep must be a duration that is not negative, such as 1h")
	}
	ctx, cancel := context.WithTimeout(req.Context(), compactTime)
	defer cancel()
	resource := req.URL.Query().Get("resource")
	result, err := Compact(ctx, s.Store, keep, resource)
	if apierrors.IsBadRequest(err) {
		return result, err
	}
	if err != nil {
		klog.ErrorS(err, "Compacting the history failed")
		return result, apierrors.NewServiceUnavailable(sqlstore.Public(err))
	}
	if result.Done {
		klog.InfoS("Compacted the history, as \"byre compact\" asked", "keep", keep, "resource", resource, "compacted", result.CompactedRevision)
	}
	return result, nil
}
