package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// At --database-quota a client gets the error that kube-apiserver passes on from etcd.
// Requests that free space are still accepted, and all others once there is space.
func TestDatabaseQuota_RefusesGrowthUntilThereIsSpace(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		// Compaction makes space by itself.
		testSpace(t, func() {}, "--database-quota=6Mi", "--retention=1s", "--compaction-interval=200ms")
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		dsn := pgtest.DSN(t)
		// The files do not shrink until they are rewritten.
		testSpace(t, func() {
			config, err := pgx.ParseConfig(dsn)
			if err != nil {
				t.Fatal(err)
			}
			config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { t.Error(n.Message) } // such as that a view is skipped
			conn, err := pgx.ConnectConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			for _, statement := range []string{`VACUUM FULL current_objects`, `VACUUM FULL undo_log`} {
				if _, err := conn.Exec(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
		}, "--endpoint", dsn, "--database-quota=16Mi", "--retention=1s", "--compaction-interval=200ms")
	})
}

// largeText is the length of the text of a large object, of which a few fill the database.
const largeText = 1_000_000

// randomText can hardly be compressed.
func randomText(size int) string {
	raw := make([]byte, size/2)
	_, _ = rand.Read(raw) // it never fails
	return hex.EncodeToString(raw)
}

func testSpace(t *testing.T, makeSpace func(), flags ...string) {
	p := startServer(t, t.TempDir(), flags...)
	config := p.config(t)
	config.QPS = -1
	kube := kubernetes.NewForConfigOrDie(config)
	maps := kube.CoreV1().ConfigMaps("default")
	lease, err := kube.CoordinationV1().Leases("default").Create(t.Context(),
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "held"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	create := func() error {
		_, err := maps.Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "large-", Finalizers: []string{"example.com/kept"}},
			Data:       map[string]string{"text": randomText(largeText)},
		}, metav1.CreateOptions{})
		return err
	}
	storetest.EventuallyDone(t, "the quota is reached", func(context.Context) (bool, error) {
		err := create()
		if err == nil {
			return false, nil
		}
		status, ok := err.(apierrors.APIStatus)
		if !ok || status.Status().Code != http.StatusInternalServerError ||
			status.Status().Message != "etcdserver: mvcc: database space exceeded" ||
			status.Status().Reason != "" || status.Status().Details != nil {
			t.Fatalf("refused with %#v", err)
		}
		return true, nil
	})
	if status, body := p.mustGet(t, "/readyz/database-quota"); status != http.StatusInternalServerError {
		t.Errorf("/readyz/database-quota: %d %s", status, body)
	}
	if status, body := p.mustGet(t, "/readyz?exclude=database-quota"); status != http.StatusOK {
		t.Errorf("the other checks: %d %s", status, body)
	}
	if _, body := p.mustGet(t, "/metrics"); !strings.Contains(body, "byre_store_quota_exceeded 1") {
		t.Error("no metric says that the quota is exceeded")
	}
	// A Lease can be renewed, also by another holder.
	holder := strings.Repeat("x", 100)
	lease.Spec.HolderIdentity = &holder
	if _, err := kube.CoordinationV1().Leases("default").Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
		t.Errorf("renew a lease: %v", err)
	}
	if _, err := kube.CoordinationV1().Leases("default").Create(t.Context(),
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{}); err == nil {
		t.Error("a lease was created")
	}
	deleteAll(t, kube)
	storetest.EventuallyDone(t, "there is space again", func(context.Context) (bool, error) {
		makeSpace() // more than once: it cannot free what is not compacted yet
		err := create()
		return err == nil, err
	})
	storetest.EventuallyDone(t, "ready again", func(ctx context.Context) (bool, error) {
		makeSpace() // the object that was just created may have reached the quota again
		return p.ready(ctx), nil
	})
	// Each change of the state is one line. A compaction that goes on while objects are
	// deleted may cause more than two.
	log := p.log.String()
	reached, below := strings.Count(log, "the database has reached its quota"),
		strings.Count(log, "the database is below its quota again")
	if reached == 0 || reached != below {
		t.Errorf("the log says %d times that the quota is reached, and %d times that it is not", reached, below)
	}
}

// deleteAll deletes objects with finalizers: the delete sets a deletion timestamp, which
// makes them larger, and an update removes the finalizers.
func deleteAll(t *testing.T, kube kubernetes.Interface) {
	t.Helper()
	maps := kube.CoreV1().ConfigMaps("default")
	list, err := maps.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range list.Items {
		if !strings.HasPrefix(item.Name, "large-") {
			continue
		}
		if err := maps.Delete(t.Context(), item.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatalf("delete: %v", err)
		}
		deleting, err := maps.Get(t.Context(), item.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		deleting.Finalizers = nil
		if _, err := maps.Update(t.Context(), deleting, metav1.UpdateOptions{}); err != nil {
			t.Fatalf("remove the finalizer: %v", err)
		}
	}
}

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
