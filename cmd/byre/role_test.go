package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// A server whose role has only the rights that docs/operations/postgresql.md grants serves, runs controllers
// and compacts the history. With the same role the database is backed up and checked.
func TestRole_WithFewRightsServes(t *testing.T) {
	t.Parallel()
	owner, dir := pgtest.DSN(t), t.TempDir()
	succeed(t, "migrate", "up", "--endpoint", owner)
	dsn := pgtest.FewRights(t, owner)
	server := startServer(t, dir, "--endpoint", dsn, "--retention-changes=1", "--compaction-interval=100ms", "--retention-for=configmaps=1h")
	client := kubernetes.NewForConfigOrDie(server.config(t))
	configMap, err := client.CoreV1().ConfigMaps("default").Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	configMap.Data = map[string]string{"a": "b"}
	if _, err := client.CoreV1().ConfigMaps("default").Update(t.Context(), configMap, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	makeAndDeleteNamespace(t, client, "deleted")
	status := []string{"status", "--data-dir", dir, "--endpoint", dsn}
	storetest.Eventually(t, "the history is compacted", func() bool {
		return readJSONStatus(t, status...).Database.CompactedRevision > 1
	})
	succeed(t, "backup", "--endpoint", dsn, filepath.Join(t.TempDir(), "backup.zst"))
	succeed(t, "check", "--endpoint", dsn)
	if last := readJSONStatus(t, status...).Database.LastBackup; last == nil {
		t.Error("the backup is not recorded")
	}
	if code := server.stop(t); code != 0 {
		t.Errorf("stopped with %d", code)
	}
	if strings.Contains(server.log.String(), "permission denied") {
		t.Error("it lacks a right: see its log")
	}
	expectSchemaAskedFor(t, owner, dsn, dir)
}

// expectSchemaAskedFor starts a server that may not make the schema of its views. It says what to run, serves, and makes the
// views once it may.
func expectSchemaAskedFor(t *testing.T, owner, dsn, dir string) {
	t.Helper()
	server := startServer(t, dir, "--endpoint", dsn, "--sql-schema=k8s")
	h := &chronicle{T: t, endpoint: owner, config: server.config(t)}
	db := h.openSchema("k8s")
	for i, statement := range []string{`CREATE SCHEMA "k8s" AUTHORIZATION byre_server`, `GRANT CREATE, USAGE ON SCHEMA "k8s" TO byre_server`} {
		storetest.Eventually(t, "the log has the statement", func() bool { return strings.Contains(server.log.String(), ": "+statement) })
		if i == 0 {
			statement = "CREATE SCHEMA k8s" // the other way: a schema of the owner
		}
		h.execute(db, statement)
		h.define(fmt.Sprintf("things%d", i), `"size":{"type":"integer"}`) // it tries again, before the minute is over
	}
	h.awaitOne(db, "default", `SELECT string_agg(name, ',') FROM namespaces`)
	if n := strings.Count(server.log.String(), "permission denied for database"); n != 1 {
		t.Errorf("%d lines that it may not make the schema", n)
	}
	if code := server.stop(t); code != 0 { // the role can be dropped once no statement of the server runs
		t.Errorf("stopped with %d", code)
	}
}
