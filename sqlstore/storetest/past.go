package storetest

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"byre/sqlstore"
)

// RecordPast lists a resource at each revision of a driver whose whole history is there. It returns a function that
// lists the past of another driver at these revisions, which it expects to be the same up to a revision; before the
// revision from, if it is not 0, it expects that the past is gone.
func RecordPast(
	t testing.TB, driver sqlstore.Driver, of sqlstore.Resource,
) func(driver sqlstore.Driver, from, upTo int64) {
	t.Helper()
	list := func(driver sqlstore.Driver, at int64) ([]sqlstore.Record, error) {
		records, _, err := collect(t.Context(), driver, sqlstore.Query{
			Range: sqlstore.Range{Group: of.Group, Resource: of.Resource, Owner: of.Owner}, At: at, Past: true,
		})
		return records, err
	}
	state, err := driver.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	recorded := map[int64][]sqlstore.Record{}
	for at := int64(1); at <= state.Revision; at++ {
		if recorded[at], err = list(driver, at); err != nil {
			t.Fatal(err)
		}
	}
	return func(driver sqlstore.Driver, from, upTo int64) {
		t.Helper()
		for at, want := range recorded {
			if at > upTo {
				continue
			}
			got, err := list(driver, at)
			if at < from {
				if !errors.Is(err, sqlstore.ErrCompacted) {
					t.Errorf("the past at revision %d, which is deleted up to %d: %v", at, from, err)
				}
				continue
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
				t.Errorf("the past at revision %d: %v\n%s", at, err, diff)
			}
		}
	}
}
