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
		if edge.isEmpty(name, views) {
			warning.AddWarning(ctx, "", fmt.Sprintf("%s is empty: you may not list what it is made of", name))
		}
	}
}

// isEmpty reports whether each part of an edge reads a table of which the user may list no row. views are all
// that the statement reads.
func (e *edge) isEmpty(name string, views []*view) bool {
	parts := 0
	for _, v := range views {
		if v.edge == name {
			if e.selects && v.name == podsTable {
				if v.now.forbidden != "" {
					return true
				}
				continue
			}
			if parts++; v.now.forbidden == "" {
				return false
			}
		}
	}
	return parts > 0
}
