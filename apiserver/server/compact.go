package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"byre/apiserver/registry"
	"byre/apiserver/storage/moment"
	"byre/sqlstore"
)

// CompactPath is the path of the request that compacts the history. It is no resource: RBAC grants
// it by nonResourceURLs, as to cluster-admin.
const CompactPath = "/byre/compact"

// compactTime bounds the work of one request. A client repeats the request until it is done: it shows how far
// the compaction is, and the compaction ends when the client does.
const compactTime = 2 * time.Second

// CompactRequest is a POST of CompactPath.
type CompactRequest struct {
	// Keep is the age of what is deleted.
	Keep time.Duration
	// Resource is as in --retention-for; if it is empty, resources that keep their history for longer than others keep
	// it.
	Resource string
	// UpTo is the last revision to delete. The first request has 0, and the next ones what its answer has.
	UpTo int64
}

// CompactResult is the answer to a CompactRequest.
type CompactResult struct {
	// UpTo is for the next request.
	UpTo int64 `json:"upTo"`
	// Older is about how many changes are to be deleted, Younger how many Keep keeps, and BeforeBytes the size of the
	// database. The answer to the first request has them.
	Older       int64 `json:"older,omitempty"`
	Younger     int64 `json:"younger,omitempty"`
	BeforeBytes int64 `json:"beforeBytes,omitempty"`
	// Deleted is how many changes this request has deleted. IsDeleted is true if none is left.
	Deleted   int64 `json:"deleted,omitempty"`
	IsDeleted bool  `json:"isDeleted,omitempty"`
	// Done is true if the database has returned the space too, as far as it does.
	Done bool `json:"done"`
	// CompactedRevision is the last revision whose history is gone, if IsDeleted.
	CompactedRevision int64 `json:"compactedRevision,omitempty"`
	// SizeBytes is the size of the database, and UsedBytes what is not free for what is written next.
	SizeBytes int64 `json:"sizeBytes"`
	UsedBytes int64 `json:"usedBytes"`
	// Kept are the resources that keep their history for longer than others, and have kept it, if IsDeleted.
	Kept []string `json:"kept,omitempty"`
}

// Compact does the work of one request, for up to compactTime. If there is no resource of the name, it fails with a
// BadRequest.
func Compact(ctx context.Context, store *sqlstore.Store, request CompactRequest) (result CompactResult, err error) {
	of := schema.ParseGroupResource(request.Resource)
	c := sqlstore.Compaction{
		Keep: request.Keep, Of: sqlstore.GroupResource{Group: of.Group, Resource: of.Resource}, UpTo: request.UpTo,
	}
	if request.UpTo == 0 {
		if err := checkResource(ctx, store, request.Resource, c); err != nil {
			return result, err
		}
		if result.BeforeBytes, err = store.Size(ctx); err != nil {
			return result, err
		}
		plan, err := store.PlanCompaction(ctx, c)
		if err != nil {
			return result, err
		}
		result.Older, result.Younger = plan.Older, plan.Younger
		c.UpTo = plan.UpTo
	}
	result.UpTo = c.UpTo
	limited, cancel := context.WithTimeout(ctx, compactTime)
	defer cancel()
	done, err := store.CompactOlder(limited, c)
	result.Deleted = done.Deleted
	if err == nil {
		result.IsDeleted, result.CompactedRevision = true, done.Revision
		for _, of := range done.Kept {
			result.Kept = append(result.Kept, of.String())
		}
		err = store.ReturnSpace(limited)
		result.Done = err == nil
	}
	if err != nil && !(errors.Is(err, context.DeadlineExceeded) && limited.Err() != nil) {
		return result, err
	}
	return result, result.measure(ctx, store)
}

func (r *CompactResult) measure(ctx context.Context, store *sqlstore.Store) (err error) {
	if r.SizeBytes, err = store.Size(ctx); err == nil {
		r.UsedBytes, err = store.Used(ctx)
	}
	return err
}

// checkResource fails if no resource has had a name.
func checkResource(ctx context.Context, store *sqlstore.Store, name string, c sqlstore.Compaction) error {
	if name == "" {
		return nil
	}
	histories, err := store.Histories(ctx)
	if err == nil && !slices.ContainsFunc(histories, func(h sqlstore.History) bool { return c.Of.Selects(h.Resource) }) {
		err = apierrors.NewBadRequest(unknownResource(name, histories))
	}
	return err
}

// serveCompact answers a POST of CompactPath with the parameters keep, resource and upTo.
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
	keep, err := moment.ParseDuration(req.URL.Query().Get("keep"))
	if err != nil || keep < 0 {
		return CompactResult{}, apierrors.NewBadRequest("keep must be a duration that is not negative, such as 1h")
	}
	request := CompactRequest{Keep: keep, Resource: req.URL.Query().Get("resource")}
	if upTo := req.URL.Query().Get("upTo"); upTo != "" {
		if request.UpTo, err = strconv.ParseInt(upTo, 10, 64); err != nil || request.UpTo < 0 {
			return CompactResult{}, apierrors.NewBadRequest("upTo must be a revision")
		}
	}
	result, err := Compact(req.Context(), s.Store, request)
	if apierrors.IsBadRequest(err) {
		return result, err
	}
	if err != nil {
		klog.ErrorS(err, "Compacting the history failed")
		return result, apierrors.NewServiceUnavailable(sqlstore.Public(err))
	}
	if result.Done {
		klog.InfoS("Compacted the history, as \"byre compact\" asked",
			"keep", keep, "resource", request.Resource, "compacted", result.CompactedRevision)
	}
	return result, nil
}

// warnOfUnknownResources logs the names in flags that select no resource, with the name that may have
// been meant. It is no error: a definition of a custom resource may come later.
func warnOfUnknownResources(ctx context.Context, driver sqlstore.Driver, o StoreOptions, logger *slog.Logger) error {
	flags := map[string][]string{"--retention-for": slices.Sorted(maps.Keys(o.RetentionFor)), "--volatile": o.Volatile}
	if len(o.RetentionFor)+len(o.Volatile) == 0 {
		return nil
	}
	known, err := knownResources(ctx, driver)
	if err != nil {
		return err
	}
	for _, flag := range slices.Sorted(maps.Keys(flags)) {
		for _, name := range flags[flag] {
			if nearest, isKnown := lookUpResource(name, known); !isKnown {
				logger.Warn(
					"A flag names a resource that this server does not know: it has no effect before there is such a resource",
					"flag", flag, "resource", name, "nearest", nearest)
			}
		}
	}
	return nil
}

// knownResources returns the built-in resources, those of CustomResourceDefinitions, and those that have
// ever had an object.
func knownResources(ctx context.Context, driver sqlstore.Driver) ([]schema.GroupResource, error) {
	definitions := schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	known := append(registry.Resources(), definitions,
		schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"})
	histories, err := driver.Histories(ctx)
	if err != nil {
		return nil, err
	}
	for _, h := range histories {
		known = append(known, schema.GroupResource{Group: h.Group, Resource: h.Resource.Resource})
	}
	q := sqlstore.Query{Range: sqlstore.Range{Group: definitions.Group, Resource: definitions.Resource}, KeysOnly: true}
	_, err = driver.List(ctx, q, func(r sqlstore.Record) error {
		known = append(known, schema.ParseGroupResource(r.Name)) // plural.group
		return nil
	})
	return known, err
}

// lookUpResource reports whether a name such as deployments.apps, leases or * selects a known resource.
// If not, nearest is the one that is most like it; empty if none is.
func lookUpResource(name string, known []schema.GroupResource) (nearest string, isKnown bool) {
	of := schema.ParseGroupResource(name)
	least := 1 + len(name)/3
	for _, k := range known {
		if name == "*" || k == of || of.Group == "" && k.Resource == of.Resource {
			return "", true
		}
		for _, candidate := range []string{k.Resource, k.String()} {
			if d := distance(name, candidate); d < least || d == least && nearest != "" && candidate < nearest {
				nearest, least = candidate, d
			}
		}
	}
	return nearest, false
}

// distance is Levenshtein's: how many letters are to be added, removed or replaced to get b from a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(row[j]+1, row[j+1]+1, replaced)
		}
	}
	return row[len(b)]
}

// unknownResource says that no history is that of a name; see lookUpResource.
func unknownResource(name string, histories []sqlstore.History) string {
	var known []schema.GroupResource
	for _, h := range histories {
		known = append(known, schema.GroupResource{Group: h.Group, Resource: h.Resource.Resource})
	}
	text := fmt.Sprintf("no resource %q has ever had an object", name)
	if nearest, _ := lookUpResource(name, known); nearest != "" {
		text += ": did you mean " + nearest + "?"
	}
	return text
}
