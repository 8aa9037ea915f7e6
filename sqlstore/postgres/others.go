package postgres

import (
	"slices"

	"byre/sqlstore"
)

// others returns what the writes of a batch require of other objects, as the last arguments of
// applyBatch. Most writes require nothing, and the others of a batch nearly always the same: each
// different requirement is sent once, and each write has its number.
func others(batch []sqlstore.Write) []any {
	requires, empties := make([]int64, len(batch)), make([]int64, len(batch))
	var required []sqlstore.Requirement
	var emptied []sqlstore.Resource
	for i := range batch {
		if r := batch[i].Requires; r != nil {
			requires[i] = number(&required, *r)
		}
		if r := batch[i].RequiresNone; r != nil {
			empties[i] = number(&emptied, *r)
		}
	}
	n := len(required)
	of, namespace, name := make([]sqlstore.Resource, n), make([]string, n), make([]string, n)
	uid, generation := make([]string, n), make([]int64, n)
	for i, r := range required {
		of[i], namespace[i], name[i], uid[i], generation[i] = r.Key.Of(), r.Key.Namespace, r.Key.Name, r.UID, r.Generation
	}
	all := append([]any{requires}, names(of)...)
	all = append(all, namespace, name, uid, generation, empties)
	return append(all, names(emptied)...)
}

// number returns the position of a value in list, beginning with 1. It appends the value if it
// is not there.
func number[T comparable](list *[]T, value T) int64 {
	i := slices.Index(*list, value)
	if i < 0 {
		i = len(*list)
		*list = append(*list, value)
	}
	return int64(i) + 1
}
