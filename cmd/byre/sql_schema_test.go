package main

import (
	stdsql "database/sql"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// openSchema opens the PostgreSQL of a server, with one session whose tables are those of a schema.
func (h *chronicle) openSchema(name string) *stdsql.DB {
	h.Helper()
	config, err := pgx.ParseConfig(h.endpoint)
	h.must(err)
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	config.RuntimeParams["search_path"] = name
	db := stdlib.OpenDB(*config)
	h.Cleanup(func() { _ = db.Close() }) // a failure is that of a statement before
	db.SetMaxOpenConns(1)
	return db
}

// one returns the one value of a query, as a text; the error of a query that fails.
func one(db *stdsql.DB, statement string) string {
	var value stdsql.NullString
	if err := db.QueryRow(statement).Scan(&value); err != nil { //nolint:noctx // the session ends with the test
		return err.Error()
	}
	return value.String
}

func (h *chronicle) awaitOne(db *stdsql.DB, want, statement string) {
	h.Helper()
	last := ""
	defer func() {
		if h.Failed() {
			h.Logf("%s: %q, want %q", statement, last, want)
		}
	}()
	storetest.Eventually(h.T, want, func() bool {
		last = one(db, statement)
		return strings.Contains(last, want)
	})
}

func (h *chronicle) execute(db *stdsql.DB, statement string) {
	h.Helper()
	_, err := db.ExecContext(h.Context(), statement)
	h.must(err)
}

var definitionsResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// define creates a definition of example.com with the properties of its spec, or gives it others.
func (h *chronicle) define(plural, properties string) {
	h.Helper()
	client, err := dynamic.NewForConfig(h.config)
	h.must(err)
	kind := strings.ToUpper(plural[:1]) + plural[1:len(plural)-1]
	text := fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[1]s.example.com"},
		"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":%[1]q,"singular":%[2]q,"kind":%[3]q,"listKind":"%[3]sList"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","description":"A thing.","properties":{"spec":{"type":"object","properties":{%[4]s}}}}}}]}}`,
		plural, strings.ToLower(kind), kind, properties)
	_, err = client.Resource(definitionsResource).Patch(h.Context(), plural+".example.com", types.ApplyPatchType, []byte(text), metav1.PatchOptions{FieldManager: "test", Force: new(true)})
	h.must(err)
}

// make creates an object of example.com.
func (h *chronicle) make(plural, kind, name, spec string) {
	h.Helper()
	client, err := dynamic.NewForConfig(h.config)
	h.must(err)
	var object unstructured.Unstructured
	h.must(json.Unmarshal(fmt.Appendf(nil, `{"apiVersion":"example.com/v1","kind":%q,"metadata":{"name":%q},"spec":{%s}}`, kind, name, spec), &object.Object))
	storetest.EventuallySucceeds(h.T, plural+" are served", func() error {
		_, err := client.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: plural}).Namespace("default").Create(h.Context(), &object, metav1.CreateOptions{})
		return err
	})
}

// made identifies what a schema has, and each time that it was made, replaced or commented on.
const made = `
SELECT string_agg(concat(c.oid, ' ', c.xmin, ' ', d.xmin), ',' ORDER BY c.oid) || (SELECT string_agg(concat(p.oid, ' ', p.xmin), ',' ORDER BY p.oid) FROM pg_proc p WHERE p.pronamespace = 'k8s'::regnamespace AND p.proname NOT LIKE '%.example.com' AND p.proname NOT IN (` + ofAllTables + `))
FROM pg_class c JOIN pg_description d ON d.objoid = c.oid AND d.objsubid = 0
WHERE c.relnamespace = 'k8s'::regnamespace AND c.relname NOT LIKE '%.example.com' AND c.relname NOT IN (` + ofAllTables + `)`

// ofAllTables are the edges that a definition changes.
const ofAllTables = `'labels', 'annotations', 'owners', 'conditions', 'events_about'`

// Views come, change and go with definitions, and nothing that others have made or depend on is lost. A server that starts again,
// and a second one, change nothing; when the first stops, the second goes on.
func TestSQLSchema_FollowsDefinitions(t *testing.T) {
	t.Parallel()
	dsn, pki, dir := pgtest.DSN(t), t.TempDir(), t.TempDir()
	flags := []string{"--endpoint", dsn, "--cert-dir", pki, "--sql-schema=k8s"}
	h := &chronicle{T: t, endpoint: dsn}
	db := h.openSchema("k8s")
	h.execute(db, `CREATE SCHEMA k8s; CREATE TABLE k8s."screws.example.com" (a int)`)
	first := startServer(t, dir, flags...)
	h.config = first.config(t)

	h.define("gears", `"teeth":{"type":"integer"},"word":{"type":"string"}`)
	h.define("screws", `"length":{"type":"integer"}`)
	h.make("gears", "Gear", "big", `"teeth":40,"word":"x"`)
	h.awaitOne(db, "40 x", `SELECT concat(spec_teeth, ' ', spec_word) FROM "gears.example.com"`)
	h.awaitOne(db, "A thing.", `SELECT obj_description('"gears.example.com"'::regclass)`)
	h.awaitOne(db, "(spec.teeth)", `SELECT col_description(attrelid, attnum) FROM pg_attribute WHERE attrelid = '"gears.example.com"'::regclass AND attname = 'spec_teeth'`)
	storetest.Eventually(t, "what byre has not made is logged", func() bool {
		return strings.Contains(first.log.String(), "screws.example.com: byre has not made what has the name")
	})

	// A column more: views of others that depend on the view go on.
	h.execute(db, `CREATE SCHEMA shop; CREATE VIEW shop.mine AS SELECT name, spec_teeth FROM k8s."gears.example.com"; GRANT SELECT ON "gears.example.com" TO PUBLIC`)
	h.define("gears", `"teeth":{"type":"integer"},"word":{"type":"string"},"width":{"type":"number"}`)
	h.awaitOne(db, "spec_width", `SELECT string_agg(attname, ',') FROM pg_attribute WHERE attrelid = '"gears.example.com"'::regclass`)
	h.awaitOne(db, "big 40", `SELECT concat(name, ' ', spec_teeth) FROM shop.mine`)
	h.awaitOne(db, "=r/", `SELECT relacl FROM pg_class WHERE oid = '"gears.example.com"'::regclass`)

	// Another type: the view stays while others depend on it.
	h.define("gears", `"teeth":{"type":"string"},"width":{"type":"number"}`)
	storetest.Eventually(t, "the dependency is logged", func() bool {
		return strings.Contains(first.log.String(), `view shop.mine depends on view k8s."gears.example.com": it stays as it is until you drop what depends on it`)
	})
	h.awaitOne(db, "big", `SELECT name FROM shop.mine`)
	h.execute(db, `DROP VIEW shop.mine`)
	h.define("gears", `"teeth":{"type":"string"},"width":{"type":"number"},"new":{"type":"string"}`)
	h.awaitOne(db, "text", `SELECT format_type(atttypid, -1) FROM pg_attribute WHERE attrelid = '"gears.example.com"'::regclass AND attname = 'spec_teeth'`)

	h.expectReadersNotWaitedFor(db)
	before := one(db, made)

	second := startServer(t, t.TempDir(), flags...)
	h.config = second.config(t)
	h.define("nuts", `"size":{"type":"integer"}`)
	h.awaitOne(db, "0", `SELECT count(*) FROM "nuts.example.com"`)
	if status := first.stop(t); status != 0 {
		t.Errorf("status %d", status)
	}
	h.define("nails", `"size":{"type":"integer"}`)
	h.awaitOne(db, "0", `SELECT count(*) FROM "nails.example.com"`)
	client, err := dynamic.NewForConfig(h.config)
	h.must(err)
	for _, plural := range []string{"gears", "screws"} {
		h.must(client.Resource(definitionsResource).Delete(t.Context(), plural+".example.com", metav1.DeleteOptions{}))
	}
	h.awaitOne(db, `relation "gears.example.com" does not exist`, `SELECT count(*) FROM "gears.example.com"`)
	h.awaitOne(db, "0", `SELECT count(*) FROM "screws.example.com"`)
	if after := one(db, made); after != before {
		t.Errorf("views were made anew:\n%s\n%s", before, after)
	}
}

// expectReadersNotWaitedFor changes a definition while a transaction reads its view.
func (h *chronicle) expectReadersNotWaitedFor(db *stdsql.DB) {
	h.Helper()
	const columns = `SELECT string_agg(attname, ',') FROM pg_attribute WHERE attrelid = '"gears.example.com"'::regclass`
	reader, err := h.openSchema("k8s").BeginTx(h.Context(), nil)
	h.must(err)
	var count int
	h.must(reader.QueryRowContext(h.Context(), `SELECT count(*) FROM "gears.example.com"`).Scan(&count))
	h.define("gears", `"late":{"type":"string"}`)
	h.define("bolts", `"size":{"type":"integer"}`)
	h.awaitOne(db, "0", `SELECT count(*) FROM "bolts.example.com"`)
	if got := one(db, columns); strings.Contains(got, "spec_late") {
		h.Errorf("a view that is read was replaced: %s", got)
	}
	h.must(reader.Rollback())
	h.awaitOne(db, "spec_late", columns)
}

// The function of a view has the rows that the API's table has at the moment, of sealed objects their keys only, and fails where
// the history is gone.
func TestSQLSchema_ShowsThePast(t *testing.T) {
	t.Parallel()
	encryption := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := os.WriteFile(encryption, []byte(`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"EncryptionConfiguration","resources":[
		{"resources":["secrets"],"providers":[{"aescbc":{"keys":[{"name":"key1","secret":"`+base64.StdEncoding.EncodeToString([]byte("0123456789abcdef"))+`"}]}}]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	h := newChronicle(t, "--endpoint", pgtest.DSN(t), "--sql-schema=k8s", "--encryption-provider-config="+encryption)
	h.makeNamespace("shop")
	db := h.openSchema("k8s")
	h.awaitOne(db, "shop", `SELECT name FROM namespaces WHERE name = 'shop'`)
	h.awaitOne(db, "0", `SELECT count(*) FROM configmaps(now()), secrets(now()), labels(now()) WHERE false`)
	h.awaitOne(db, "kube-root-ca.crt", `SELECT name FROM configmaps WHERE namespace = 'shop'`) // a controller makes it
	maps := h.kube.CoreV1().ConfigMaps("shop")
	write := func(name, value string) {
		_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"k": value}}, metav1.CreateOptions{})
		h.must(err)
	}
	for _, name := range []string{"kept", "changed", "deleted"} {
		write(name, "x\x00y")
	}
	label := func(value string) {
		for _, name := range []string{"kept", "changed"} {
			_, err := maps.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"labels":{"of":"`+value+`"}}}`), metav1.PatchOptions{})
			h.must(err)
		}
	}
	label("then")
	_, err := h.kube.CoreV1().Secrets("shop").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "sealed"}}, metav1.CreateOptions{})
	h.must(err)
	moment := one(db, `SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`)
	_, err = maps.Patch(t.Context(), "changed", types.MergePatchType, []byte(`{"data":{"k":"z"}}`), metav1.PatchOptions{})
	h.must(err)
	label("now")
	h.must(maps.Delete(t.Context(), "deleted", metav1.DeleteOptions{}))
	write("late", "x")

	for table, atLeast := range map[string]int{`configmaps('` + moment + `')`: 4, `labels('` + moment + `') WHERE resource = 'configmaps'`: 2} {
		columns, want := h.answered(table)
		got := h.viewed(db, table, columns)
		if !reflect.DeepEqual(got, want) || len(want) < atLeast {
			t.Errorf("%s: %d rows: %s", table, len(want), differences(columns, got, want))
		}
	}
	for statement, want := range map[string]string{
		`SELECT string_agg(name, ',' ORDER BY name) FROM configmaps('` + moment + `') WHERE namespace = 'shop' AND name <> 'kube-root-ca.crt'`: "changed,deleted,kept",
		`SELECT string_agg(name, ',' ORDER BY name) FROM configmaps(now()) WHERE namespace = 'shop' AND name <> 'kube-root-ca.crt'`:            "changed,kept,late",
		`SELECT string_agg(value, ',') FROM labels('` + moment + `') WHERE resource = 'configmaps' AND key = 'of'`:                             "then,then",
		`SELECT count(*) FROM configmaps(NULL), labels(NULL)`:                                                                                  "0",
		`SELECT concat(name, ' ', uid, ' ', revision > 0, object) FROM secrets WHERE namespace = 'shop' AND name = 'sealed'`:                   "sealed  t",
		`SELECT concat(name, ' ', uid, ' ', revision > 0, object) FROM secrets(now()) WHERE namespace = 'shop' AND name = 'sealed'`:            "sealed  t",
	} {
		if got := one(db, statement); got != want {
			t.Errorf("%s: %q, want %q", statement, got, want)
		}
	}
	// A condition on the key is one on the key of the tables.
	if plan := h.plan(db, `SELECT object FROM configmaps('`+moment+`') WHERE namespace = 'shop' AND name = 'kept'`); !strings.Contains(plan, "(c.namespace = 'shop'::text) AND (c.name = 'kept'::text)") && !strings.Contains(plan, "(namespace = 'shop'::text) AND (name = 'kept'::text)") {
		t.Error(plan)
	}
	succeed(t, "compact", "--endpoint", h.endpoint, "--data-dir", h.dir, "--keep=0s", "--resource=configmaps")
	if got := one(db, `SELECT count(*) FROM configmaps('`+moment+`')`); !strings.Contains(got, "the history of configmaps does not reach back to") || !strings.Contains(got, "the earliest moment is revision ") {
		t.Error(got)
	}
	if got := one(db, `SELECT count(*) FROM labels('`+moment+`')`); !strings.Contains(got, "the history of configmaps does not reach back to") {
		t.Error(got)
	}
	if got := one(db, `SELECT count(*) FROM labels('`+moment+`') WHERE resource = 'namespaces' AND name = 'shop'`); got != "1" {
		t.Errorf("of a resource whose history reaches back: %s", got)
	}
	write("after", "x") // the log has no change that is so late otherwise
	if got := one(db, `SELECT count(*) FROM configmaps(now()) WHERE namespace = 'shop' AND name = 'kept'`); got != "1" {
		t.Error(got)
	}
}

// The flag is refused where it can't be followed.
func TestSQLSchema_IsRefused(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts byre")
	}
	dir := t.TempDir()
	for _, test := range []struct {
		want string
		args []string
	}{
		{"byre: --sql-schema needs PostgreSQL: name a database with --endpoint", []string{"--sql-schema=k8s"}},
		{`--sql-schema: schema "pg_k8s": the name is PostgreSQL's own`, []string{"--sql-schema=pg_k8s", "--endpoint", pgtest.DSN(t)}},
		{`--sql-schema: the schema "public" has byre's own tables: name another`, []string{"--sql-schema=public", "--endpoint", pgtest.DSN(t)}},
	} {
		server := command(t, dir, serveArgs(dir, test.args...)...)
		if status := server.wait(t); status == 0 || !strings.Contains(server.log.String(), test.want) {
			t.Errorf("%q: status %d, %s", test.args, status, server.log)
		}
		if _, err := os.Stat(filepath.Join(dir, "byre.db")); err == nil {
			t.Error("it has made a database")
		}
	}
}

// Without the flag there is no schema.
func TestSQLSchema_IsOffByDefault(t *testing.T) {
	t.Parallel()
	h := newChronicle(t, "--endpoint", pgtest.DSN(t))
	if got := one(h.openSchema("public"), `SELECT string_agg(nspname, ',' ORDER BY nspname) FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%'`); got != "information_schema,public" {
		t.Error(got)
	}
}
