package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/migrations"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// Every command accepts the schema as a flag or in the endpoint's search_path.
func TestDatabaseSchema_OfEveryCommand(t *testing.T) {
	t.Parallel()
	dsn, dir := pgtest.DSN(t), t.TempDir()
	rows := storetest.RandomRows(t, rand.New(rand.NewPCG(4, 4)))
	source := sqliteWith(t, rows)
	in := func(schema string) string {
		named, err := migrations.WithSchema(dsn, schema)
		if err != nil {
			t.Fatal(err)
		}
		return named
	}
	mustCall := func(want string, args ...string) {
		t.Helper()
		if status, out, errOut := call(args...); status != 0 || !strings.Contains(out, want) {
			t.Fatalf("%q: status %d, %q, %q; want %q", args, status, out, errOut, want)
		}
	}
	if status, _, _ := call("migrate", "status", "--endpoint", dsn, "--database-schema=one"); status != statusBehind {
		t.Errorf("status of a missing schema: %d", status)
	}
	mustCall("copied and verified", "copy", "--from", source, "--to", dsn, "--to-schema=one")
	mustCall("schema", "migrate", "status", "--endpoint", dsn, "--database-schema=one")
	mustCall("restored and verified", "restore", "--from", in("one"), "--endpoint", dsn, "--database-schema=three")
	// The values of random rows are not objects: this test ignores what the check finds.
	if status, out, errOut := call("check", "--endpoint", dsn, "--database-schema=three"); status != statusDamaged || !strings.Contains(out, fmt.Sprintf("checked %d objects", len(rows.Objects))) {
		t.Errorf("check: status %d, %q, %q", status, out, errOut)
	}
	mustCall("schema", "migrate", "up", "--endpoint", dsn, "--database-schema=four")
	mustCall("copied and verified", "copy", "--from", dsn, "--from-schema=one", "--to", in("five"))
	want, _ := digestOf(t, source)
	for _, schema := range []string{"one", "five"} {
		if got, _ := digestOf(t, in(schema)); got != want {
			t.Errorf("schema %s holds %v, want %v", schema, got, want)
		}
	}
	// Last, because it records the backup in the schema.
	file := filepath.Join(dir, "backup.zst")
	mustCall("", "backup", "--endpoint", dsn, "--database-schema=one", file)
	mustCall("restored and verified", "restore", "--endpoint", in("two"), file)
	if status, _, _ := call("migrate", "status", "--endpoint", dsn); status != statusBehind {
		t.Errorf("status of the schema public, which nobody named: %d", status)
	}
	expectFailure(t, "needs PostgreSQL", "check", "--data-dir", dir, "--database-schema=one")
	expectFailure(t, "does not begin with the schema", "check", "--endpoint", in("one"), "--database-schema=two")
	expectFailure(t, "PostgreSQL's own", "migrate", "up", "--endpoint", dsn, "--database-schema=pg_one")
	expectFailure(t, `schema "one"`, "copy", "--from", source, "--to", dsn, "--to-schema=one")
}

// Servers share one PostgreSQL database, with a schema each: none sees the objects of
// another, and an idle one has four connections.
func TestServe_SchemaEach(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	names := []string{"tenant-a", "tenant-b"}
	servers := make([]*serverProcess, len(names))
	for i, name := range names {
		endpoint := dsn + "&application_name=" + name
		dir := t.TempDir()
		servers[i] = command(t, dir, "serve", "--data-dir", dir, "--bind-address=127.0.0.1", "--secure-port=0", "--endpoint", endpoint, "--database-schema", name)
	}
	clients := make([]kubernetes.Interface, len(names))
	for i, server := range servers {
		awaitReady(t, server)
		var err error
		if clients[i], err = kubernetes.NewForConfig(server.config(t)); err != nil {
			t.Fatal(err)
		}
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: names[i]}}
		if _, err := clients[i].CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i, client := range clients {
		if _, err := client.CoreV1().Namespaces().Get(t.Context(), names[1-i], metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s sees the namespace of %s: %v", names[i], names[1-i], err)
		}
	}
	admin, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.Background())
	for _, name := range names {
		storetest.EventuallyDone(t, "four connections of "+name, func(ctx context.Context) (bool, error) {
			rows, err := admin.Query(ctx, `SELECT query FROM pg_stat_activity WHERE application_name = $1`, name)
			if err != nil {
				return false, err
			}
			queries, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err == nil && len(queries) > 4 {
				err = fmt.Errorf("there are %d: %q", len(queries), queries)
			}
			return err == nil && len(queries) > 0, err
		})
	}
	if _, err := admin.Exec(t.Context(), `DROP SCHEMA "tenant-a" CASCADE`); err != nil {
		t.Fatal(err)
	}
	if status, body := servers[1].mustGet(t, "/readyz"); status != 200 {
		t.Errorf("a server beside a schema that was dropped: %d %s", status, body)
	}
	if _, err := clients[1].CoreV1().Namespaces().Get(t.Context(), names[1], metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
