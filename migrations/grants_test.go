package migrations_test

import (
	"fmt"
	"slices"
	"testing"

	"byre/migrations"
)

// A privilege that an administrator has granted on the table counters also holds for the view
// counters after the step up, and for the table again after the step down.
func TestGrants_FollowTheName(t *testing.T) {
	t.Parallel()
	d := postgresDatabase(t)
	d.at(t, 1)
	// Roles belong to the server and stay when the database is dropped.
	d.exec(t, `DROP ROLE IF EXISTS "the reader", columns, later; CREATE ROLE "the reader"; CREATE ROLE columns; CREATE ROLE later`)
	d.exec(t, `GRANT SELECT, UPDATE ON counters TO "the reader" WITH GRANT OPTION; GRANT SELECT (revision) ON counters TO columns`)
	expect := func(when string, want ...string) {
		t.Helper()
		var got []string
		for _, role := range []string{"the reader", "columns", "later"} {
			for _, privilege := range []string{"SELECT", "UPDATE", "UPDATE WITH GRANT OPTION", "DELETE"} {
				got = append(got, d.query(t, fmt.Sprintf(
					`SELECT '%[1]s: %[2]s' WHERE has_table_privilege('%[1]s', 'counters', '%[2]s')`, role, privilege))...)
			}
		}
		got = append(got, d.query(t, `SELECT attname::text FROM pg_attribute WHERE attrelid = 'counters'::regclass
AND attnum > 0 AND has_column_privilege('columns', attrelid, attnum, 'SELECT')`)...)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	granted := []string{"the reader: SELECT", "the reader: UPDATE", "the reader: UPDATE WITH GRANT OPTION"}
	expect("before", append(granted, "revision")...)
	if _, err := migrations.Up(t.Context(), d.endpoint); err != nil {
		t.Fatal(err)
	}
	expect("up", append(granted, "revision")...)
	d.exec(t, `GRANT DELETE ON counters TO later`)
	d.at(t, 2)
	expect("down", append(granted, "later: DELETE", "revision")...)
}
