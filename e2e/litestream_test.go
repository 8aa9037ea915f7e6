package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

// TestLitestream_RestoresWhatItReplicated has Litestream replicate the file of a byre that
// writes more than its log holds between two checkpoints, kills byre, and restores the copy
// as docs/operations/backup.md says, under informers. "make litestream" runs it: to build
// Litestream takes some minutes.
func TestLitestream_RestoresWhatItReplicated(t *testing.T) {
	if os.Getenv("E2E_LITESTREAM") == "" {
		t.Skip("make litestream")
	}
	if err := programs.Build(t.Context(), programs.Litestream); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	database := filepath.Join(dir, "byre.db")
	byre := servers.Byre{Dir: filepath.Join(dir, "data"), Endpoint: "sqlite://" + database,
		Args: []string{"--controllers="}}
	server, err := byre.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	replica := "file://" + filepath.Join(dir, "replica")
	litestream := exec.Command(programs.Litestream.Path(), "replicate", database, replica)
	if err := litestream.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = litestream.Process.Kill(); _ = litestream.Wait() }) // if the test fails before it stops it
	storetest.EventuallySucceeds(t, "Litestream has the file open", func() error {
		_, err := os.Stat(filepath.Join(dir, "replica"))
		return err
	})

	c := newRestoreClient(t, server)
	count := c.Fill(t, 100)
	for i := range 80 { // 40 MB: the log is copied back at 16
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": fmt.Sprintf("large-%d", i)},
			"data": map[string]any{"text": strings.Repeat("x", 500_000)},
		}}
		resource := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
		if _, err := c.Dynamic.Resource(resource).Namespace("default").Create(t.Context(), object,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	stores := c.inform(t)
	c.change(t)
	awaitStores(t, c, stores)
	want := c.Dump(t)
	server.Kill()
	// It replicates the rest before it ends.
	if err := litestream.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = litestream.Wait()

	restored := filepath.Join(dir, "copy.db")
	if out, err := exec.CommandContext(t.Context(), programs.Litestream.Path(), "restore", "-o", restored,
		replica).CombinedOutput(); err != nil {
		t.Fatalf("litestream restore: %v: %s", err, out)
	}
	byreCommand(t, "check", "--endpoint", "sqlite://"+restored)
	byre.Endpoint = "sqlite://" + filepath.Join(dir, "restored.db")
	byreCommand(t, "restore", "--from", "sqlite://"+restored, "--endpoint", byre.Endpoint)
	serveRestored(t, byre, c)
	compareDumps(t, want, c.Dump(t), count)
	awaitStores(t, c, stores)
	c.change(t)
	awaitStores(t, c, stores)
}
