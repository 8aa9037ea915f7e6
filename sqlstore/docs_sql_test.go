package sqlstore_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"byre/migrations"
	"byre/sqlstore/postgres/pgtest"
)

// doc is the JSON of a value for json and for jsonb, whatever the value is.
func TestDoc_FailsForNoValue(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	for value, want := range map[string]string{
		`{"a":"b"}`:                        "b",
		`{"a":"b","x":"\u0000"}`:           "b",
		`{"a":"\u0000\u0000c"}`:            "\ufffd\ufffdc",
		`{"a":"\\u0000"}`:                  `\u0000`,
		`{"a":"\\\u0000"}`:                 "\\\ufffd",
		`{"a":"\\\\u0000"}`:                `\\u0000`,
		`{"a":"\u003cb\u003e"}`:            "<b>",
		`{"a":"\ud800"}`:                   "\ufffd",
		`{"a":"\udc00x\uD800x"}`:           "\ufffdx\ufffdx",
		`{"a":"\ud83d\ude00\u0000"}`:       "\U0001F600\ufffd",
		`{"a":"\uDEAD\ud83d\ude00\ud83d"}`: "\ufffd\U0001F600\ufffd",
		`{"a":"b","n":1e400}`:              "b",
	} {
		var asJSON, asJSONB string
		if err := conn.QueryRow(t.Context(), `SELECT doc($1) ->> 'a', doc($1)::jsonb ->> 'a'`, value).Scan(&asJSON, &asJSONB); err != nil || asJSON != want || asJSONB != want {
			t.Errorf("%s: %q, %q, %v; want %q", value, asJSON, asJSONB, err, want)
		}
		var decoded map[string]any
		if err := json.Unmarshal([]byte(value), &decoded); err != nil && !strings.Contains(value, "1e400") {
			t.Errorf("%s is no JSON: %v", value, err)
		}
	}
	for _, value := range []any{nil, `"k8s:enc:aescbc:v1:key1:AAAA"`, "k8s\x01", "", "nonsense"} {
		var isNull bool
		if err := conn.QueryRow(t.Context(), `SELECT doc($1) IS NULL`, value).Scan(&isNull); err != nil || !isNull {
			t.Errorf("%v: %v, want NULL", value, err)
		}
	}
	var volatility, parallel string
	var isStrict bool
	if err := conn.QueryRow(t.Context(), `SELECT provolatile::text, proparallel::text, proisstrict FROM pg_proc WHERE proname = 'doc'`).
		Scan(&volatility, &parallel, &isStrict); err != nil || volatility != "i" || parallel != "s" || !isStrict {
		t.Errorf("volatility %s, parallel %s, strict %t, %v", volatility, parallel, isStrict, err)
	}
}

// docs/operations/sql.md names every table, every view and each of their columns.
func TestDocs_NameEveryColumn(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "docs", "operations", "sql.md"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "byre.db")
	if _, err := migrations.Up(t.Context(), "sqlite://"+path); err != nil {
		t.Fatal(err)
	}
	names, err := runShell(t, "sqlite3", "-readonly", path, `
SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'
UNION SELECT c.name FROM sqlite_schema s, pragma_table_info(s.name) c WHERE s.type IN ('table', 'view') AND s.name NOT LIKE 'sqlite_%'`)
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(names) {
		if !strings.Contains(string(page), "`"+name+"`") && !strings.Contains(string(page), "`\""+name+"\"`") {
			t.Errorf("docs/operations/sql.md does not name `%s`", name)
		}
	}
}

// The role of docs/operations/sql.md can run the queries of the page, and reads no Secret, neither those of now nor
// those of the history.
func TestDocs_ReaderReadsNoSecrets(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "docs", "operations", "sql.md"))
	if err != nil {
		t.Fatal(err)
	}
	grants := regexp.MustCompile("(?ms)^```sql reader\n(.*?)^```$").FindSubmatch(page)
	if grants == nil {
		t.Fatal("docs/operations/sql.md does not say how to make a role that can not read Secrets")
	}
	dsn := postgresWithDocumentedChanges(t)
	ctx := context.WithoutCancel(t.Context())
	owner, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = owner.Close(ctx) })
	t.Cleanup(func() {
		if _, err := owner.PgConn().Exec(ctx, `DROP OWNED BY byre_reader; DROP SCHEMA byre_reader CASCADE; DROP ROLE byre_reader`).ReadAll(); err != nil {
			t.Error(err)
		}
	})
	if _, err := owner.PgConn().Exec(ctx, string(grants[1])).ReadAll(); err != nil {
		t.Fatal(err)
	}
	count := func(conn *pgx.Conn, query string) (n int) {
		t.Helper()
		if err := conn.QueryRow(ctx, query).Scan(&n); err != nil {
			t.Errorf("%s: %v", query, err)
		}
		return n
	}
	reader, err := pgx.Connect(ctx, strings.Replace(dsn, "postgres://byre@", "postgres://byre_reader@", 1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Close(ctx) })
	for _, view := range []string{"objects", "changes", "history"} {
		secrets := `SELECT count(*) FROM ` + view + ` WHERE value LIKE '%hunter2%'`
		if n := count(owner, secrets); n == 0 {
			t.Errorf("the owner sees no Secret in %s", view)
		}
		if n := count(reader, secrets); n != 0 {
			t.Errorf("the reader sees %d Secrets in %s", n, view)
		}
		if n := count(reader, `SELECT count(*) FROM `+view); n == 0 {
			t.Errorf("the reader sees nothing in %s", view)
		}
		expectDenied(t, reader, `SELECT count(*) FROM public.`+view)
	}
	for _, table := range []string{"current_objects", "undo_log", "store"} {
		expectDenied(t, reader, `SELECT count(*) FROM `+table)
	}
	// The reader's own function is cheaper than the view's condition, and sees no Secret either.
	if _, err := reader.PgConn().Exec(ctx, `
CREATE FUNCTION pg_temp.peek(value text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS $$
BEGIN
    IF value LIKE '%hunter2%' THEN
        RAISE EXCEPTION 'seen: %', value;
    END IF;
    RETURN true;
END
$$`).ReadAll(); err != nil {
		t.Fatal(err)
	}
	for _, view := range []string{"objects", "changes", "history"} {
		count(reader, `SELECT count(*) FROM `+view+` WHERE pg_temp.peek(value)`)
	}
	for _, q := range readDocs(t) {
		if q.dialect == "" || q.dialect == "postgres" {
			rows, _ := reader.Query(ctx, q.query) // CollectRows returns the error
			if _, err := pgx.CollectRows(rows, pgx.RowToMap); err != nil {
				t.Errorf("%s: %v", q.heading, err)
			}
		}
	}
}

func expectDenied(t *testing.T, conn *pgx.Conn, query string) {
	t.Helper()
	var n int
	if err := conn.QueryRow(t.Context(), query).Scan(&n); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("%s: %d, %v", query, n, err)
	}
}
