package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/sqlite"
)

// documented is one query of docs/sql.md; no dialect means every one.
type documented struct{ heading, dialect, query string }

func readDocs(t *testing.T) (all []documented) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "docs", "sql.md"))
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
		all = append(all, documented{heading, m[2], m[3]})
	}
	return all
}

// Every query of docs/sql.md finds something in both databases.
func TestDocumentedQueries(t *testing.T) {
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
	live(t, driver)
	db, err := sql.Open("sqlite", migrations.SQLiteDSN(path)+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return func(t *testing.T, query string) (n int, err error) {
		rows, err := db.QueryContext(t.Context(), query)
		if err != nil {
			return 0, err
		}
		defer rows.Close()
		for rows.Next() {
			n++
		}
		return n, rows.Err()
	}
}

func documentedPostgres(t *testing.T) func(*testing.T, string) (int, error) {
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	driver, err := postgres.Open(t.Context(), dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { driver.Close() })
	live(t, driver)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return func(t *testing.T, query string) (n int, err error) {
		rows, err := conn.Query(t.Context(), query)
		if err != nil {
			return 0, err
		}
		defer rows.Close()
		for rows.Next() {
			n++
		}
		return n, rows.Err()
	}
}

// live makes what the documented queries look for.
func live(t *testing.T, driver sqlstore.Driver) {
	t.Helper()
	admin := sqlstore.Author{User: "kubernetes-admin", Verb: "apply", AuditID: "b5c7"}
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
	settings := write(sqlstore.Create, 0, "", "configmaps", "settings", `{"metadata":{"name":"settings"},"data":{"a":"\u0000"}}`)
	write(sqlstore.Delete, settings, "", "configmaps", "settings", "")
	write(sqlstore.Create, 0, "", "events", "started", `{"reason":"Started"}`)
	write(sqlstore.Create, 0, "example.com", "widgets", "one", `{"spec":{"size":7}}`)
	if _, err := driver.Compact(t.Context(), 1, 10); err != nil {
		t.Fatal(err)
	}
}

// The view shows each state once, whether history still has it or not.
func TestHistoryView(t *testing.T) {
	t.Parallel()
	for dialect, count := range map[string]func(*testing.T, string) (int, error){
		"sqlite": documentedSQLite(t), "postgres": documentedPostgres(t),
	} {
		for where, want := range map[string]int{
			`name = 'web'`:                                                          1, // the first state is forgotten
			`name = 'web' AND value LIKE '%3%'`:                                     1,
			`name = 'web' AND replaced LIKE '%"replicas":1%'`:                       1,
			`op = 'delete' AND value IS NULL`:                                       1,
			`op = 'delete' AND replaced LIKE '%settings%'`:                          1,
			`op = 'create' AND value IS NOT NULL`:                                   6,
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
