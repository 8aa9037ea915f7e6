package main

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/sqlstore/eventually"
)

// byre compact deletes the history at once: through the running server, and of a database that no
// server uses. What is younger than --keep stays.
func TestCompact_WithAndWithoutAServer(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		dir := t.TempDir()
		server := startServer(t, dir, append([]string{"--controllers="}, flags...)...)
		kube := kubernetes.NewForConfigOrDie(server.config(t))
		made, err := kube.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		succeed(t, "compact", "--data-dir", dir, "--keep=1h")
		resume := metav1.ListOptions{ResourceVersion: made.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact}
		if _, err := kube.CoreV1().ConfigMaps("default").List(t.Context(), resume); err != nil {
			t.Errorf("what is younger than --keep is gone: %v", err)
		}
		if err := kube.CoreV1().ConfigMaps("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		succeed(t, "compact", "--data-dir", dir, "--keep=0s")
		// The feed of a server learns of a compaction with the next change.
		eventually.Done(t, "the history is gone", func(ctx context.Context) (bool, error) {
			_, err := kube.CoreV1().ConfigMaps("default").List(ctx, resume)
			return err != nil, nil
		})
		server.stop(t)
		endpoint := "sqlite://" + dir + "/byre.db"
		if len(flags) > 0 {
			endpoint = flags[1]
		}
		if out, _ := succeed(t, "compact", "--endpoint", endpoint, "--keep=0s"); !strings.HasPrefix(out, "compacted up to revision ") {
			t.Errorf("compact says %q", out)
		}
		if s := readJSONStatus(t, "status", "--data-dir", t.TempDir(), "--endpoint", endpoint); s.Database.CompactedRevision == 0 || s.Database.CompactedRevision != s.Database.Revision {
			t.Errorf("afterwards %+v", s.Database)
		}
		expectFailure(t, "--keep must not be negative", "compact", "--data-dir", dir, "--keep=-1s")
	})
}
