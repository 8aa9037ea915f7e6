package migrating

import (
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"

	"byre/migrations"
)

func sqliteSchema(t *testing.T, path string) (lines []string) {
	t.Helper()
	db, err := sql.Open("sqlite", migrations.SQLiteDSN(path))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(t.Context(),
		`SELECT type || ' ' || name || ' ' || coalesce(sql, '') FROM sqlite_schema ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}

func postgresSchema(t *testing.T, dsn string) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	// Only the schema public is compared: names that PostgreSQL makes from OIDs, such as those
	// of TOAST tables, differ between runs.
	rows, err := conn.Query(t.Context(), `
SELECT c.relkind::text || ' ' || c.relname || ' ' || coalesce(array_to_string(c.reloptions, ','), '') || ' ' ||
       coalesce(string_agg(a.attname || ' ' || a.atttypid::regtype::text || ' ' || a.attnotnull || ' ' || a.attcompression::text, ', ' ORDER BY a.attnum), '')
FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'public'::regnamespace
GROUP BY c.oid, c.relkind, c.relname, c.reloptions
UNION ALL
SELECT p.proname || ' ' || p.prosrc FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return lines
}
