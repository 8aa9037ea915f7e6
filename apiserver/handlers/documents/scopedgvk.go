package documents

import (
	"strings"

	"k8s.io/kube-openapi/pkg/spec3"
)

const extensionKinds = "x-kubernetes-group-version-kind"

// filterScopedGVKs removes the kinds of other groups from the schemas of WatchEvent and
// DeleteOptions, which every group registers. Of about sixty kinds, the document at path
// keeps that of its own group version and that of the core group. It follows upstream's
// function of the same name in k8s.io/apiserver/pkg/server/routes/openapi.go.
func filterScopedGVKs(document *spec3.OpenAPI, path string) {
	group, version, ok := groupVersion(path)
	if !ok || document.Components == nil {
		return
	}
	for _, schema := range document.Components.Schemas {
		kinds, ok := schema.Extensions[extensionKinds].([]any)
		if !ok || len(kinds) < 2 || !isSharedKind(kinds[0]) {
			continue
		}
		var kept []any
		for _, kind := range kinds {
			g, v := field(kind, "group"), field(kind, "version")
			if (g == group && v == version) || (g == "" && v == "v1") {
				kept = append(kept, kind)
			}
		}
		schema.Extensions[extensionKinds] = kept
	}
}

// isSharedKind reports whether every group registers the kind.
func isSharedKind(kind any) bool {
	k := field(kind, "kind")
	return k == "WatchEvent" || k == "DeleteOptions"
}

func field(kind any, name string) string {
	fields, _ := kind.(map[string]any)
	value, _ := fields[name].(string)
	return value
}

// groupVersion parses the group version in "api/v1" or "apis/apps/v1".
func groupVersion(path string) (group, version string, ok bool) {
	switch parts := strings.Split(path, "/"); {
	case len(parts) == 2 && parts[0] == "api":
		return "", parts[1], true
	case len(parts) == 3 && parts[0] == "apis":
		return parts[1], parts[2], true
	default:
		return "", "", false
	}
}
