package main

import (
	stdsql "database/sql"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"k8s.io/client-go/kubernetes"

	"byre/sqlstore/postgres/pgtest"
)

// plan returns how a database answers a statement.
func (h *chronicle) plan(db *stdsql.DB, statement string) string {
	h.Helper()
	explain := "EXPLAIN QUERY PLAN "
	if strings.HasPrefix(h.endpoint, "postgres") {
		explain = "EXPLAIN "
		_, err := db.ExecContext(h.Context(), "SET enable_seqscan = off")
		h.must(err)
	}
	rows, err := db.QueryContext(h.Context(), explain+statement)
	h.must(err)
	defer rows.Close()
	columns, err := rows.Columns()
	h.must(err)
	var b strings.Builder
	for rows.Next() {
		row, into := make([]any, len(columns)), make([]any, len(columns))
		for i := range row {
			into[i] = &row[i]
		}
		h.must(rows.Scan(into...))
		fmt.Fprintln(&b, row[len(row)-1])
	}
	h.must(rows.Err())
	return b.String()
}

// A query of a view uses an index that was made on its column. Checks find nothing wrong with it, a restored backup does not
// have it, and it does not stop a server.
func TestSQLIndex_ServesQueriesOfViews(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts servers")
	}
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, flags := t.TempDir(), flags(t)
			server := startServer(t, dir, flags...)
			h := &chronicle{T: t, dir: dir, endpoint: "sqlite"}
			if len(flags) > 0 {
				h.endpoint = flags[1]
			}
			index := func(wantStatus int, want string, args ...string) {
				t.Helper()
				status, out, errOut := call(append(append([]string{"sql", "index"}, args...), h.ownFlags()...)...)
				if status != wantStatus || strings.TrimSpace(out+errOut) != want {
					t.Errorf("%q: status %d, %q, want %q", args, status, out+errOut, want)
				}
			}
			if name == "sqlite" {
				if status, _, errOut := call("sql", "index", "create", "a", "pods", "node", "--data-dir", dir); status != 1 || !strings.Contains(errOut, "stop it first") {
					t.Errorf("status %d, %s", status, errOut)
				}
			}
			server.stop(t)
			index(0, "", "create", "pods_by_node", "pods", "node")
			index(0, "", "create", "starts", "pods", "status_start_time")
			index(1, `byre: there is an index "starts": drop it first, or take another name`, "create", "starts", "pods", "ip")
			index(1, `byre: there is no table "nope"`, "create", "x", "nope", "node")
			index(1, `byre: the table pods has no column "nope"`, "create", "x", "pods", "nope")
			index(0, "NAME           TABLE   COLUMN\npods_by_node   pods    node\nstarts         pods    status_start_time", "list")
			server = startServer(t, dir, flags...)
			h.config = server.config(t)
			h.kube = kubernetes.NewForConfigOrDie(h.config)
			h.createViewObjects(rand.New(rand.NewPCG(26, 3)))
			db := h.open("sql", "views")
			for statement, want := range map[string]string{
				"SELECT name FROM pods WHERE node = 'n1'":                                "byre_user_pods_by_node",
				"SELECT name FROM pods WHERE status_start_time = '2026-01-31T12:00:00Z'": "byre_user_starts",
			} {
				if plan := h.plan(db, statement); !strings.Contains(plan, want) {
					t.Errorf("%s does not use %s:\n%s", statement, want, plan)
				}
			}
			var pods int
			h.must(db.QueryRowContext(t.Context(), "SELECT count(*) FROM pods WHERE node LIKE 'n%'").Scan(&pods))
			h.must(db.Close())
			server.stop(t)
			if status, out, errOut := call(append([]string{"check"}, h.ownFlags()...)...); status != 0 {
				t.Errorf("check: status %d, %s%s", status, out, errOut)
			}
			backup := filepath.Join(t.TempDir(), "backup")
			if status, out, errOut := call(append([]string{"backup", backup}, h.ownFlags()...)...); status != 0 || pods == 0 {
				t.Errorf("backup: status %d, %s%s; %d pods", status, out, errOut, pods)
			}
			restored := filepath.Join(t.TempDir(), "restored")
			into := []string{"--data-dir", restored}
			if name == "postgres" {
				into = []string{"--endpoint", pgtest.DSN(t)}
			}
			if status, out, errOut := call(append([]string{"restore", backup}, into...)...); status != 0 {
				t.Errorf("restore: status %d, %s%s", status, out, errOut)
			}
			if status, out, _ := call(append([]string{"sql", "index", "list", "-o", "json"}, into...)...); status != 0 || out != "[]\n" {
				t.Errorf("the restored database has the indexes %s", out)
			}
			index(0, "", "drop", "starts")
			index(0, "NAME           TABLE   COLUMN\npods_by_node   pods    node", "list")
			index(1, `byre: there is no index "starts": "byre sql index list" lists them`, "drop", "starts")
		})
	}
}

// The role reads the objects of its namespaces, no Secrets, and none of byre's tables.
func TestSQLGrant_ReadsOnlyItsNamespaces(t *testing.T) {
	t.Parallel()
	if status, _, errOut := call("sql", "grant", "reporting", "--namespaces="); status != 1 || !strings.Contains(errOut, "--namespaces must name namespaces") {
		t.Errorf("status %d, %s", status, errOut)
	}
	h := newChronicle(t, databases()["postgres"](t)...)
	h.createViewObjects(rand.New(rand.NewPCG(26, 4)))
	h.makeNamespace("bank")
	owner := h.open("sql", "views")
	if status, out, errOut := call("sql", "grant", "reporting", "--namespaces", "shop", "--yes", "--endpoint", h.endpoint); status != 0 || out != "" {
		t.Fatalf("status %d, %s%s", status, out, errOut)
	}
	t.Cleanup(func() {
		if _, err := owner.Exec(`DROP OWNED BY reporting; DROP SCHEMA reporting CASCADE; DROP ROLE reporting`); err != nil { //nolint:noctx // the context of the test has ended
			t.Error(err)
		}
	})
	config, err := pgx.ParseConfig(strings.Replace(h.endpoint, "postgres://byre@", "postgres://reporting@", 1))
	h.must(err)
	reader := stdlib.OpenDB(*config)
	defer reader.Close()
	var pods, others, edges string
	h.must(reader.QueryRowContext(t.Context(), `SELECT count(*), (SELECT count(*) FROM configmaps WHERE namespace <> 'shop'),
		(SELECT concat(sum((resource = 'pods')::int), ' ', sum((namespace <> 'shop' OR resource = 'secrets')::int)) FROM labels) FROM pods`).Scan(&pods, &others, &edges))
	if pods != "3" || others != "0" || edges != "5 0" {
		t.Errorf("the role reads %s Pods, %s ConfigMaps of other namespaces, and labels of Pods and of what it may not: %s", pods, others, edges)
	}
	for _, table := range []string{"secrets", "public.objects", "public.current_objects", "public.history", "public.resources", "public.undo_log", "public.store"} {
		if _, err := reader.ExecContext(t.Context(), "SELECT * FROM "+table); err == nil {
			t.Errorf("the role reads %s", table)
		}
	}
}
