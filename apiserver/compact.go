package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

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
}

// Compact compacts the history of a store that is older than keep, for as long as ctx allows.
func Compact(ctx context.Context, store *sqlstore.Store, keep time.Duration) (CompactResult, error) {
	revision, err := store.CompactOlder(ctx, keep)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		return CompactResult{}, nil
	}
	if err != nil {
		return CompactResult{}, err
	}
	result := CompactResult{Done: true, CompactedRevision: revision}
	if sizer, ok := store.Driver.(sqlstore.Sizer); ok {
		result.SizeBytes, err = sizer.Size(ctx)
	}
	return result, err
}

// serveCompact answers a POST of CompactPath with the parameter keep.
func (c *core) serveCompact(w http.ResponseWriter, req *http.Request) {
	result, err := c.compact(req)
	if err != nil {
		responsewriters.ErrorNegotiated(err, legacyscheme.Codecs, schema.GroupVersion{Version: "v1"}, w, req)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(result) // fails only if the client has gone
}

func (c *core) compact(req *http.Request) (CompactResult, error) {
	if req.Method != http.MethodPost {
		return CompactResult{}, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "compact"}, req.Method)
	}
	keep, err := time.ParseDuration(req.URL.Query().Get("keep"))
	if err != nil || keep < 0 {
		return CompactResult{}, apierrors.NewBadRequest("keep must be a duration that is not negative, such as 1h")
	}
	ctx, cancel := context.WithTimeout(req.Context(), compactTime)
	defer cancel()
	result, err := Compact(ctx, c.store, keep)
	if err != nil {
		klog.ErrorS(err, "Compacting the history failed")
		return result, apierrors.NewServiceUnavailable(sqlstore.Public(err))
	}
	if result.Done {
		klog.InfoS("Compacted the history, as \"byre compact\" asked", "keep", keep, "compacted", result.CompactedRevision)
	}
	return result, nil
}
