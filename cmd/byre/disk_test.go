package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// On a full disk a server starts, is ready for systemd, and deletes. When the history is compacted
// it takes all writes again, and has its reserve again. The copy of the database gives up its space too.
func TestDisk_IsEmptiedWhenFull(t *testing.T) {
	emptyFullDisk(t, "--replicate-to", "file://"+t.TempDir())
}

// Without a copy SQLite writes its log back itself, as sqlstore/sqlite tests it.
func TestDisk_IsEmptiedWhenFullWithoutACopy(t *testing.T) {
	night(t)
	t.Parallel()
	emptyFullDisk(t)
}

func emptyFullDisk(t *testing.T, flags ...string) {
	t.Helper()
	const reserved = 24 << 20 // the least
	disk := pgtest.NewDisk(t, 160)
	dir := filepath.Join(disk.Dir, "data")
	flags = append(flags, "--controllers=", "--disk-reserve=24Mi")
	server := startServer(t, dir, flags...)
	reserve := filepath.Join(dir, "byre.db-reserve")
	if info, err := os.Stat(reserve); err != nil || info.Size() != reserved {
		t.Fatalf("the reserve is %v, %v", info, err)
	}
	kube := kubernetes.NewForConfigOrDie(server.config(t))
	create := func() error {
		_, err := kube.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "large-"}, Data: map[string]string{"text": randomText(900_000)},
		}, metav1.CreateOptions{})
		return err
	}
	for range 40 {
		if err := create(); err != nil {
			t.Fatal(err)
		}
	}
	if err := disk.Fill(); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "the disk is full", func() bool {
		err := create()
		if err != nil && (!apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "the disk is full")) {
			t.Fatalf("create: %v", err)
		}
		return err != nil
	})
	if info, err := os.Stat(reserve); err != nil || info.Size() != 0 {
		t.Errorf("the released reserve is %v, %v", info, err)
	}
	if err := disk.Free(); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "the reserve is taken back", func() bool {
		info, err := os.Stat(reserve)
		return err == nil && info.Size() == reserved && create() == nil
	})
	server.stop(t)

	if err := disk.Fill(); err != nil {
		t.Fatal(err)
	}
	receive, env := listenForSystemd(t)
	server = commandWith(t, env, dir, serveArgs(dir, flags...)...)
	if got := receive(); !strings.HasPrefix(got, "READY=1\n") {
		t.Fatalf("the first message is %q", got)
	}
	kube = kubernetes.NewForConfigOrDie(server.config(t))
	if status, body := server.mustGet(t, "/readyz/etcd-readiness"); status != http.StatusInternalServerError {
		t.Errorf("/readyz/etcd-readiness: %d %s", status, body)
	}
	if err := create(); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("create: %v", err)
	}
	all, err := kube.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range all.Items {
		if !strings.HasPrefix(item.Name, "large-") {
			continue
		}
		if err := kube.CoreV1().ConfigMaps("default").Delete(t.Context(), item.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatalf("delete: %v", err)
		}
	}
	out, _ := succeed(t, "compact", "--data-dir", dir, "--keep=0s")
	if !strings.HasPrefix(out, "compacted up to revision ") {
		t.Errorf("compact says %q", out)
	}
	storetest.EventuallyDone(t, "the server takes all writes", func(ctx context.Context) (bool, error) {
		err := create()
		return err == nil && server.ready(ctx), err
	})
	if info, err := os.Stat(reserve); err != nil || info.Size() != reserved {
		t.Errorf("the reserve is %v, %v", info, err)
	}
}
