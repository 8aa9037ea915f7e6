package main

import (
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/sqlstore/eventually"
	"byre/sqlstore/postgres/pgtest"
)

// A server whose role has only the rights that docs/operations/postgresql.md grants serves, runs controllers
// and compacts the history. With the same role the database is backed up and checked.
func TestRole_WithFewRightsServes(t *testing.T) {
	t.Parallel()
	dsn, dir := pgtest.DSN(t), t.TempDir()
	succeed(t, "migrate", "up", "--endpoint", dsn)
	dsn = pgtest.FewRights(t, dsn)
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
	eventually.True(t, "the history is compacted", func() bool {
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
}
