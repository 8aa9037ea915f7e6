package e2e

import "testing"

func openPostgres(t *testing.T) database {
	t.Skip("in work")
	return database{name: "postgres", query: func(q string) ([]string, error) { return queryPostgres(t.Context(), "", q) }}
}
