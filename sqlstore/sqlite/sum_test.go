package sqlite_test

import (
	"errors"
	"strings"
	"testing"

	"byre/sqlstore"
)

// A row whose bytes have changed is not served: every read that returns it fails. A row of
// an older release has no checksum and is served.
func TestSums_NoReadServesAChangedRow(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"value":          `UPDATE current_objects SET value = '{"replicas":9}' WHERE name = 'a'`,
		"form":           `UPDATE current_objects SET form = 'other' WHERE name = 'a'`,
		"expiry":         `UPDATE current_objects SET expires = '2026-01-01T00:00:00.000000Z' WHERE name = 'a'`,
		"uid":            `UPDATE current_objects SET uid = 'other' WHERE name = 'a'`,
		"replaced value": `UPDATE undo_log SET value = '{"replicas":9}' WHERE revision = 2`,
		"author":         `UPDATE undo_log SET who = 'mallory' WHERE revision = 2`,
		"time":           `UPDATE undo_log SET time = '2020-01-01T00:00:00.000000Z' WHERE revision = 2`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver, path := open(t)
			defer driver.Close()
			k := createAndUpdate(t, driver)
			pods := sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}}
			none := func(sqlstore.Record) error { return nil }
			read := func() []error {
				_, _, getErr := driver.Get(t.Context(), k)
				_, listErr := driver.List(t.Context(), pods, none)
				old := pods
				old.At = 1
				_, oldErr := driver.List(t.Context(), old, none)
				_, changesErr := driver.Changes(t.Context(), sqlstore.ChangesQuery{After: 0, Limit: 10})
				return []error{getErr, listErr, oldErr, changesErr}
			}
			if err := errors.Join(read()...); err != nil {
				t.Fatal(err)
			}
			other := foreign(t, path)
			execute(t, other, change)
			var failed int
			for _, err := range read() {
				if err != nil {
					failed++
					if !errors.Is(err, sqlstore.ErrDamaged) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "byre check") {
						t.Errorf("unexpected error: %v", err)
					}
				}
			}
			want := 3 // Get, List and Changes
			switch name {
			case "replaced value":
				want = 2 // List at revision 1, and Changes
			case "author", "time":
				want = 1 // Changes
			}
			if failed != want {
				t.Errorf("%d of 4 reads failed, want %d", failed, want)
			}
			execute(t, other, `UPDATE current_objects SET record_sum = NULL, change_sum = NULL; UPDATE undo_log SET record_sum = NULL, change_sum = NULL`)
			if err := errors.Join(read()...); err != nil {
				t.Errorf("without sums: %v", err)
			}
		})
	}
}

// A change whose value is gone, since somebody has deleted the row that replaced it, is damage
// too: who follows the changes reads everything again.
func TestChanges_WithoutTheirValueAreDamaged(t *testing.T) {
	t.Parallel()
	driver, path := open(t)
	defer driver.Close()
	createAndUpdate(t, driver)
	execute(t, foreign(t, path), `DELETE FROM undo_log WHERE revision = 2`)
	changes, err := driver.Changes(t.Context(), sqlstore.ChangesQuery{After: 0, Limit: 10})
	if !errors.Is(err, sqlstore.ErrDamaged) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "byre check") {
		t.Errorf("%+v, %v", changes, err)
	}
}

// createAndUpdate makes the revisions 1 and 2 of an object.
func createAndUpdate(t *testing.T, driver sqlstore.Driver) sqlstore.Key {
	t.Helper()
	k := sqlstore.Key{Resource: "pods", Namespace: "n", Name: "a"}
	for _, w := range []sqlstore.Write{
		{Op: sqlstore.Create, Key: k, Value: []byte(`{"replicas":1}`), UID: "u", Encoding: "f"},
		{Op: sqlstore.Update, Key: k, Replaces: 1, Value: []byte(`{"replicas":2}`), UID: "u", Encoding: "f"},
	} {
		if o, err := driver.Commit(t.Context(), []sqlstore.Write{w}); err != nil || o[0].Err != nil {
			t.Fatal(o, err)
		}
	}
	return k
}
