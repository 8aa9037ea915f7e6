package storetest

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"byre/sqlstore"
)

// HistoryQuery selects the rows of the view history, each as one text.
const HistoryQuery = `
SELECT revision || ' ' || op || ' ' || resource || '/' || name || ' ' || coalesce(value, '-') || ' ' || coalesce(replaced, '-')
FROM history ORDER BY revision`

// Archive tests a driver that is a sqlstore.Archiver, on an empty database. history returns the
// rows of HistoryQuery.
func Archive(t *testing.T, driver sqlstore.Driver, history func() []string) {
	f := fixture{TB: t, Driver: driver}
	of := func(group, resource, name string) sqlstore.Key {
		return sqlstore.Key{Group: group, Resource: resource, Namespace: "n", Name: name}
	}
	deployment, lease, pod := of("apps", "deployments", "d"), of("coordination.k8s.io", "leases", "l"), of("", "pods", "p")
	f.revision(create(deployment, "1"))
	f.revision(create(lease, "2"))
	f.revision(create(pod, "3"))
	f.revision(update(deployment, 1, "4"))
	f.revision(update(lease, 2, "5"))
	f.revision(create(of("apps", "deployments", "gone"), "6"))
	f.revision(remove(of("apps", "deployments", "gone"), 6))
	f.revision(update(pod, 3, "8"))
	f.revision(update(deployment, 4, "9"))
	whole := history()

	store := sqlstore.New(driver, sqlstore.Options{Retention: anHour, RetentionFor: []sqlstore.ResourceRetention{
		{GroupResource: sqlstore.GroupResource{Group: "apps", Resource: "deployments"}, Age: 2 * anHour},
		{GroupResource: sqlstore.GroupResource{Resource: "leases"}, Age: anHour / 2},
	}})
	for range 2 { // the second time there is nothing to copy
		if err := store.Compact(t.Context(), 7); err != nil {
			t.Fatal(err)
		}
	}
	// The history still has all changes of deployments, the changes of other resources that
	// wrote a current state, and the changes that are not compacted.
	want := slices.DeleteFunc(slices.Clone(whole), func(row string) bool {
		return strings.HasPrefix(row, "2 ") || strings.HasPrefix(row, "3 ")
	})
	for i, row := range want {
		if strings.HasPrefix(row, "5 ") { // the replaced value of a change that is not archived is gone
			want[i] = strings.TrimSuffix(row, `"2"`) + "-"
		}
	}
	if diff := cmp.Diff(want, history()); diff != "" {
		t.Errorf("history after the compaction (-want +got):\n%s", diff)
	}
	// Only SQL reads the archive: Changes and List fail at compacted revisions.
	if _, err := driver.Changes(t.Context(), 3, 10, 0); !errors.Is(err, sqlstore.ErrCompacted) {
		t.Errorf("changes after a compacted revision: %v", err)
	}
	if _, _, err := collect(t.Context(), driver, sqlstore.Query{Range: sqlstore.Range{Group: "apps", Resource: "deployments"}, At: 4}); !errors.Is(err, sqlstore.ErrCompacted) {
		t.Errorf("list at a compacted revision: %v", err)
	}
	// Changes whose earlier ones of the same object are in the archive join them there.
	if err := store.Compact(t.Context(), 9); err != nil {
		t.Fatal(err)
	}
	want = slices.DeleteFunc(want, func(row string) bool { return strings.HasPrefix(row, "8 ") })
	want = append(want[:len(want)-1], `8 update pods/p "8" -`, want[len(want)-1])
	if diff := cmp.Diff(want, history()); diff != "" {
		t.Errorf("history after everything was compacted (-want +got):\n%s", diff)
	}

	testDeleteArchived(t, driver, history)
}

// testDeleteArchived deletes the archive of Archive by age, the oldest changes first.
func testDeleteArchived(t *testing.T, driver sqlstore.Driver, history func() []string) {
	archiver := driver.(sqlstore.Archiver)
	deployments := sqlstore.GroupResource{Group: "apps", Resource: "deployments"}
	if next, ok, err := archiver.NextArchived(t.Context(), sqlstore.GroupResource{}); err != nil || !ok || next != deployments {
		t.Errorf("first in the archive: %v, %v, %v", next, ok, err)
	}
	if next, ok, err := archiver.NextArchived(t.Context(), deployments); err != nil || ok {
		t.Errorf("second in the archive: %v, %v, %v", next, ok, err)
	}
	if n, err := archiver.DeleteArchived(t.Context(), deployments, time.Now().Add(-anHour), 10); n != 0 || err != nil {
		t.Errorf("deleted %d changes that are younger, %v", n, err)
	}
	for _, want := range []int{2, 2, 1, 0} {
		if n, err := archiver.DeleteArchived(t.Context(), deployments, time.Now().Add(anHour), 2); n != want || err != nil {
			t.Errorf("deleted %d changes, %v; want %d", n, err, want)
		}
	}
	want := []string{`5 update leases/l "5" -`, `8 update pods/p "8" -`, `9 update deployments/d "9" -`}
	if diff := cmp.Diff(want, history()); diff != "" {
		t.Errorf("history without an archive (-want +got):\n%s", diff)
	}
}
