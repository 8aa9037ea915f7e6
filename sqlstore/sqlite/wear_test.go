package sqlite_test

import (
	"strconv"
	"strings"
	"testing"

	"byre/sqlstore"
	"byre/sqlstore/sqlite"
)

// An update of a small object, such as the renewal of a Lease, writes the page of its row, that
// of its change, and that of its key in the index of changes, and few others.
func TestUpdate_WritesFewPages(t *testing.T) {
	t.Parallel()
	driver, _ := open(t)
	defer driver.Close()
	const nodes, rounds = 20, 20
	revisions := make([]int64, nodes)
	commit := func(i int, op sqlstore.Op) {
		t.Helper()
		o, err := driver.Commit(t.Context(), []sqlstore.Write{{
			Op: op, Replaces: revisions[i], UID: "8cd0c3a4-4a8e-4d05-a3f3-6f5bb1d3d6a6", Encoding: "v1.36/coordination.k8s.io/v1",
			Key:    sqlstore.Key{Group: "coordination.k8s.io", Resource: "leases", Namespace: "kube-node-lease", Name: "node-" + strconv.Itoa(i)},
			Value:  []byte(`{"spec":"` + strings.Repeat("x", 600) + `"}`),
			Author: sqlstore.Author{User: "system:node:node-" + strconv.Itoa(i), Verb: "update"},
		}})
		if err != nil || o[0].Err != nil {
			t.Fatal(o, err)
		}
		revisions[i] = o[0].Revision
	}
	for i := range nodes {
		commit(i, sqlstore.Create)
	}
	before := logPages(t, driver)
	for range rounds {
		for i := range nodes {
			commit(i, sqlstore.Update)
		}
	}
	if pages := float64(logPages(t, driver)-before) / (nodes * rounds); pages > 5 {
		t.Errorf("an update writes %.2f pages to the log, want at most 5", pages)
	} else {
		t.Logf("an update writes %.2f pages to the log", pages)
	}
}

// Maintain copies the log back when it is long, and not after each commit.
func TestMaintain_LeavesAShortLog(t *testing.T) {
	t.Parallel()
	driver, _ := openWith(t, 1000)
	defer driver.Close()
	for copied, i := 0, 0; copied == 0; i++ {
		if err := commits(t, driver, strconv.Itoa(i), 100_000); err != nil {
			t.Fatal(err)
		}
		pages := logPages(t, driver)
		if err := driver.MaintainOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, copied = driver.Log(t.Context())
		if long := pages >= 500; long != (copied > 0) {
			t.Fatalf("%d pages of a log of %d are copied back", copied, pages)
		}
	}
}

func logPages(t *testing.T, driver *sqlite.Driver) int {
	t.Helper()
	pages, _ := driver.Log(t.Context())
	return pages
}
