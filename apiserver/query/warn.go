package query

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/warning"
)

// warn adds a warning for each table and edge that a statement names, and that is empty because its user may
// list nothing of what it has.
func warn(ctx context.Context, sql string, views []*view) {
	sql = strings.ToLower(sql)
	for _, v := range views {
		if v.edge == "" && v.now.forbidden != "" && strings.Contains(sql, v.name) {
			warning.AddWarning(ctx, "", fmt.Sprintf("%s is empty: %s", v.name, v.now.forbidden))
		}
	}
	for name, edge := range edgesIn(sql) {
		var parts []*selection
		var pods *podsByNamespace
		for _, v := range views {
			switch {
			case v.edge != name:
			case edge.selects && v.name == podsTable:
				pods = &podsByNamespace{shown: v.now}
			default:
				parts = append(parts, v.now)
			}
		}
		if isEmpty(parts, pods) {
			warnEmpty(ctx, name)
		}
	}
}

func warnEmpty(ctx context.Context, edge string) {
	warning.AddWarning(ctx, "", edge+" is empty: you may not list what it is made of")
}

// isEmpty reports whether the user may list no row of any part of an edge, or none of the Pods that it selects
// from, if it does.
func isEmpty(parts []*selection, pods *podsByNamespace) bool {
	if pods != nil && pods.shown.forbidden != "" {
		return true
	}
	for _, part := range parts {
		if part.forbidden == "" {
			return false
		}
	}
	return len(parts) > 0
}
