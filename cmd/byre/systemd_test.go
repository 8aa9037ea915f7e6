package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/sqlstore/eventually"
)

// A server that is started at its quota tells systemd that it is ready: objects can be deleted
// then. Nodes and servers can create their Leases, and the log has one line of the quota.
func TestSystemd_IsReadyAtTheQuota(t *testing.T) {
	dir := t.TempDir()
	first := startServer(t, dir, "--database-quota=3Mi")
	fillQuota(t, kubernetes.NewForConfigOrDie(first.config(t)))
	first.stop(t)
	receive := listenForSystemd(t)
	server := command(t, dir, serveArgs(dir, "--database-quota=3Mi")...)
	if got := receive(); !strings.HasPrefix(got, "READY=1\n") {
		t.Fatalf("the first message is %q", got)
	}
	if status, body := server.mustGet(t, "/readyz/database-quota"); status != http.StatusInternalServerError {
		t.Errorf("/readyz/database-quota: %d %s", status, body)
	}
	client := kubernetes.NewForConfigOrDie(server.config(t))
	eventually.Done(t, "the server has an identity Lease", func(ctx context.Context) (bool, error) {
		leases, err := client.CoordinationV1().Leases("kube-system").List(ctx, metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity"})
		return err == nil && len(leases.Items) == 1, err
	})
	node := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	if _, err := client.CoordinationV1().Leases("kube-node-lease").Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Errorf("the Lease of a node: %v", err)
	}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "more"}}, metav1.CreateOptions{}); err == nil {
		t.Error("a Namespace is created at the quota")
	}
	server.stop(t)
	if lines := regexp.MustCompile("(?m)^E.*").FindAllString(server.log.String(), -1); len(lines) != 1 || !strings.Contains(lines[0], "reached its quota") {
		t.Errorf("the log has the errors %q", lines)
	}
}

// fillQuota creates objects until the quota is reached.
func fillQuota(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	eventually.True(t, "the quota is reached", func() bool {
		_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "big-"}, Data: map[string]string{"a": strings.Repeat("x", 500_000)},
		}, metav1.CreateOptions{})
		return err != nil
	})
}

// listenForSystemd makes the socket that systemd reads for Type=notify, and returns what reads the
// next message from it.
func listenForSystemd(t *testing.T) (receive func() string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "notify") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", socket)
	return func() string {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
			t.Fatal(err)
		}
		message := make([]byte, 4096)
		n, err := conn.Read(message)
		if err != nil {
			t.Fatal(err)
		}
		return string(message[:n])
	}
}

// TestSystemd_IsNotifiedOfStartLifeAndStop reads the socket that systemd reads for
// Type=notify and WatchdogSec=.
func TestSystemd_IsNotifiedOfStartLifeAndStop(t *testing.T) {
	receive := listenForSystemd(t)
	t.Setenv("WATCHDOG_USEC", "30000000")
	data := t.TempDir()
	server := command(t, data, "serve", "--data-dir", data, "--bind-address=127.0.0.1", "--secure-port=0")
	if got := receive(); !strings.HasPrefix(got, "READY=1\nSTATUS=Serving on 127.0.0.1:") {
		t.Fatalf("the first message is %q", got)
	}
	if status, body := server.mustGet(t, "/readyz"); status != http.StatusOK {
		t.Errorf("/readyz after READY=1: %d %s", status, body)
	}
	if got := receive(); got != "WATCHDOG=1" {
		t.Errorf("the second message is %q", got)
	}
	if status := server.stop(t); status != 0 {
		t.Errorf("exit status is %d", status)
	}
	got := receive()
	for got == "WATCHDOG=1" { // a slow machine sends several
		got = receive()
	}
	if !strings.HasPrefix(got, "STOPPING=1\n") {
		t.Errorf("the last message is %q", got)
	}
}
