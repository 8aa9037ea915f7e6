package migrations_test

import (
	"slices"
	"testing"

	"byre/migrations"
)

// The values of a new database are compressed by lz4 where the server was built with it, also after all data
// was deleted.
func TestPostgres_CompressesValues(t *testing.T) {
	t.Parallel()
	db := postgresDatabase(t)
	want := db.query(t, `
SELECT t.name || CASE WHEN s.name IS NULL THEN ' ' ELSE ' l' END
FROM (VALUES ('current_objects'), ('undo_log')) t(name)
LEFT JOIN pg_settings s ON s.name = 'default_toast_compression' AND 'lz4' = ANY (s.enumvals) ORDER BY 1`)
	for range 2 {
		if _, err := migrations.Up(t.Context(), db.endpoint); err != nil {
			t.Fatal(err)
		}
		// PostgreSQL 13 has no column attcompression.
		got := db.query(t, `
SELECT c.relname || ' ' || coalesce(to_jsonb(a) ->> 'attcompression', '')
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND a.attname = 'value' ORDER BY 1`)
		if !slices.Equal(got, want) {
			t.Errorf("the columns are %q, want %q", got, want)
		}
		if _, err := migrations.Down(t.Context(), db.endpoint, true); err != nil {
			t.Fatal(err)
		}
	}
}
