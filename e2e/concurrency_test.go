package e2e

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
)

// each calls f n times concurrently, with 0 to n-1, and fails the test with the first error.
func each(t *testing.T, n int, f func(ctx context.Context, i int) error) {
	t.Helper()
	errs := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { errs[i] = f(t.Context(), i) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func mustQuery(t *testing.T, db database, query string) []string {
	t.Helper()
	rows, err := db.query(query)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func splitRow(t *testing.T, row string) (first, rest string) {
	t.Helper()
	first, rest, ok := strings.Cut(row, "\t")
	if !ok {
		t.Fatalf("a row of one column: %q", row)
	}
	return first, rest
}
