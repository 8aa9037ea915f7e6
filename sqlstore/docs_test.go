package sqlstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

// documentedQuery is one query of docs/operations/sql.md. An empty dialect means both.
type documentedQuery struct{ heading, dialect, query string }

func readDocs(t *testing.T) (all []documentedQuery) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "docs", "operations", "sql.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?ms)^## ([^\n]+)$|^```sql ?(\\w*)\n(.*?)^```$")
	var heading string
	for _, m := range block.FindAllStringSubmatch(string(page), -1) {
		if m[1] != "" {
			heading = m[1]
			continue
		}
		all = append(all, documentedQuery{heading, m[2], m[3]})
	}
	return all
}

// Every query of docs/operations/sql.md finds rows in both databases, through the shells that the page
// names.
func TestDocs_QueriesWork(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	t.Parallel()
	queries := readDocs(t)
	rows := map[string]func(t *testing.T, query string) (int, error){
		"sqlite": documentedSQLite(t), "postgres": documentedPostgres(t),
	}
	asked := make(map[string]int)
	for _, q := range queries {
		for dialect, count := range rows {
			if q.dialect != "" && q.dialect != dialect {
				continue
			}
			asked[dialect]++
			n, err := count(t, q.query)
			if err != nil {
				t.Errorf("%s (%s): %v", q.heading, dialect, err)
			} else if n == 0 {
				t.Errorf("%s (%s): no rows", q.heading, dialect)
			}
		}
	}
	if asked["sqlite"] < 10 || asked["sqlite"] != asked["postgres"] {
		t.Errorf("queries: %v, want as many for each, and ten at least", asked)
	}
}

// documentedSQLite returns a function that counts the rows of a query, by sqlite3, in a
// SQLite database with the changes of makeDocumentedChanges.
func documentedSQLite(t *testing.T) func(*testing.T, string) (int, error) {
	path := filepath.Join(t.TempDir(), "byre.db")
	if _, err := migrations.Up(t.Context(), "sqlite://"+path); err != nil {
		t.Fatal(err)
	}
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { driver.Close() })
	makeDocumentedChanges(t, driver)
	return func(t *testing.T, query string) (int, error) {
		out, err := runShell(t, "sqlite3", "-readonly", "-bail", "-list", "-noheader", "-newline", separator, path, query)
		return strings.Count(out, separator), err
	}
}

// separator is what psql prints between rows, and sqlite3 after each row.
const separator = "\x1e"

func runShell(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return string(out), err
}

// documentedPostgres does what documentedSQLite does, by psql and in PostgreSQL.
func documentedPostgres(t *testing.T) func(*testing.T, string) (int, error) {
	dsn := postgresWithDocumentedChanges(t)
	return func(t *testing.T, query string) (int, error) {
		out, err := runShell(t, "psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--no-align", "--tuples-only",
			"--record-separator="+separator, "--command="+query, dsn)
		if err != nil || out == "" {
			return 0, err
		}
		return strings.Count(out, separator) + 1, nil
	}
}

func postgresWithDocumentedChanges(t *testing.T) (dsn string) {
	t.Helper()
	dsn = pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	driver, err := postgres.Open(t.Context(), dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { driver.Close() })
	makeDocumentedChanges(t, driver)
	return dsn
}

// hardValues are values that PostgreSQL can't take apart, and one that is encrypted.
var hardValues = []string{
	`{"metadata":{"labels":{"app":"hard"}},"data":{"a":"\u0000\u0000","b":"\\u0000","c":"\ud800","d":"\udc00\ud83d\ude00"},"spec":{"containers":[{"image":"\u0000"}]}}`,
	`"k8s:enc:aescbc:v1:key1:AAAA"`,
}

// makeDocumentedChanges makes changes such that each query of docs/operations/sql.md finds rows.
func makeDocumentedChanges(t *testing.T, driver sqlstore.Driver) {
	t.Helper()
	admin := sqlstore.Author{User: "byre-admin", Verb: "apply", AuditID: "b5c7"}
	write := func(op sqlstore.Op, replaces int64, group, resource, name, value string) int64 {
		t.Helper()
		w := sqlstore.Write{
			Op: op, Key: sqlstore.Key{Group: group, Resource: resource, Namespace: "default", Name: name},
			Replaces: replaces, UID: "uid-" + name, Value: []byte(value), Author: admin,
		}
		if resource == "events" {
			w.Expires = time.Now().Add(time.Hour)
		}
		o, err := driver.Commit(t.Context(), []sqlstore.Write{w})
		if err != nil || o[0].Err != nil {
			t.Fatal(err, o)
		}
		return o[0].Revision
	}
	deployment := `{"metadata":{"name":"web","labels":{"app":"web"}},"spec":{"replicas":%d,"paused":%t}}`
	first := write(sqlstore.Create, 0, "apps", "deployments", "web", fmt.Sprintf(deployment, 1, false))
	write(sqlstore.Update, first, "apps", "deployments", "web", fmt.Sprintf(deployment, 3, true))
	for i := range 3 {
		pod := `{"metadata":{"name":"web-%d","ownerReferences":[{"uid":"uid-web"}]},` +
			`"spec":{"nodeName":"node-1","containers":[{"name":"a","image":"nginx:1"}]},"status":{"phase":"Running"}}`
		write(sqlstore.Create, 0, "", "pods", fmt.Sprint("web-", i), fmt.Sprintf(pod, i))
	}
	settings := write(sqlstore.Create, 0, "", "configmaps", "settings",
		`{"metadata":{"name":"settings"},"data":{"a":"\u0000"}}`)
	write(sqlstore.Delete, settings, "", "configmaps", "settings", "")
	write(sqlstore.Create, 0, "", "events", "started", `{"reason":"Started"}`)
	write(sqlstore.Create, 0, "example.com", "crawlers", "pages", `{"spec":{"queue":"standard","jobs":6}}`)
	secret := write(sqlstore.Create, 0, "", "secrets", "password", `{"data":{"password":"hunter2"}}`)
	write(sqlstore.Update, secret, "", "secrets", "password", `{"data":{"password":"hunter2 again"}}`)
	// No query fails because of these.
	for i, value := range hardValues {
		for _, resource := range []string{"configmaps", "pods"} {
			revision := write(sqlstore.Create, 0, "", resource, fmt.Sprint("hard-", i), value)
			write(sqlstore.Update, revision, "", resource, fmt.Sprint("hard-", i), value)
		}
	}
	storetest.Compact(t, driver, 1)
}

// The view history shows each state that is not compacted once, and what each change replaced.
func TestHistoryView_ShowsEachStateOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	t.Parallel()
	for dialect, count := range map[string]func(*testing.T, string) (int, error){
		"sqlite": documentedSQLite(t), "postgres": documentedPostgres(t),
	} {
		for where, want := range map[string]int{
			`name = 'web'`:                                                          1, // the first state is compacted
			`name = 'web' AND value LIKE '%3%'`:                                     1,
			`name = 'web' AND replaced LIKE '%"replicas":1%'`:                       1,
			`op = 'delete' AND value IS NULL`:                                       1,
			`op = 'delete' AND replaced LIKE '%settings%'`:                          1,
			`op = 'create' AND value IS NOT NULL AND name NOT LIKE 'hard%'`:         7,
			`op = 'create' AND replaced IS NOT NULL`:                                0,
			`resource = 'configmaps' AND op = 'create' AND value LIKE '%settings%'`: 1,
		} {
			n, err := count(t, `SELECT revision FROM history WHERE `+where)
			if err != nil || n != want {
				t.Errorf("%s: %s: %d rows, %v; want %d", dialect, strings.TrimSpace(where), n, err, want)
			}
		}
	}
}

// The copy that docs/operations/backup.md describes completes while the server writes, and is a
// database at one revision.
func TestDocs_BackupIsConsistent(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("writes while a backup is made")
	}
	page, err := os.ReadFile(filepath.Join("..", "docs", "operations", "backup.md"))
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile("SQLite: `(sqlite3 byre-data/byre.db [^`]+)`").FindSubmatch(page)
	if command == nil {
		t.Fatal("docs/operations/backup.md does not say how to copy a SQLite database")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "byre-data", "byre.db")
	if _, err := migrations.Up(t.Context(), "sqlite://"+path); err != nil {
		t.Fatal(err)
	}
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer driver.Close()
	var written atomic.Int64
	write := func() {
		key := sqlstore.Key{Resource: "configmaps", Namespace: "default", Name: fmt.Sprint(written.Load())}
		value := []byte(`"` + strings.Repeat("x", 10_000) + `"`)
		o, err := driver.Commit(t.Context(), []sqlstore.Write{{Op: sqlstore.Create, Key: key, Value: value}})
		if err != nil || o[0].Err != nil {
			t.Error(err, o)
		}
		written.Add(1)
	}
	for range 500 {
		write()
	}
	copied := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for {
			select {
			case <-copied:
				return
			default:
				write()
			}
		}
	})
	run := exec.CommandContext(t.Context(), "sh", "-c", string(command[1]))
	run.Dir = dir
	out, err := run.CombinedOutput()
	close(copied)
	writer.Wait()
	if err != nil {
		t.Fatalf("%s: %v: %s", command[1], err, out)
	}
	err = sqlite.ReadSnapshot(t.Context(), filepath.Join(dir, "copy.db"), func(copied sqlstore.Snapshot) error {
		objects := int64(0)
		for _, err := range copied.Objects {
			if err != nil {
				return err
			}
			objects++
		}
		if copied.Revision < 500 || copied.Revision > written.Load() || objects != copied.Revision {
			t.Errorf("the copy is at revision %d of %d with %d objects", copied.Revision, written.Load(), objects)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

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
		if err := conn.QueryRow(t.Context(), `SELECT doc($1) ->> 'a', doc($1)::jsonb ->> 'a'`, value).Scan(&asJSON,
			&asJSONB); err != nil || asJSON != want || asJSONB != want {
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
	if err := conn.QueryRow(t.Context(),
		`SELECT provolatile::text, proparallel::text, proisstrict FROM pg_proc WHERE proname = 'doc'`).
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
		if _, err := owner.PgConn().Exec(ctx,
			`DROP OWNED BY byre_reader; DROP SCHEMA byre_reader CASCADE; DROP ROLE byre_reader`).ReadAll(); err != nil {
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
	if err := conn.QueryRow(t.Context(), query).Scan(&n); err == nil ||
		!strings.Contains(err.Error(), "permission denied") {
		t.Errorf("%s: %d, %v", query, n, err)
	}
}
