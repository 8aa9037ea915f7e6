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

	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// A server that is started at its quota tells systemd that it is ready: objects can be deleted
// then. It creates its own objects, such as those that a new version of it adds. Nodes and servers
// can create their Leases, and the log has one line of the quota.
func TestSystemd_IsReadyAtTheQuota(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := startServer(t, dir, "--database-quota=3Mi")
	client := kubernetes.NewForConfigOrDie(first.config(t))
	fillQuota(t, client)
	const binding = "kubeadm:apiserver-kubelet-client"
	if err := client.RbacV1().ClusterRoleBindings().Delete(t.Context(), binding, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	first.stop(t)
	receive, env := listenForSystemd(t)
	server := commandWith(t, env, dir, serveArgs(dir, "--database-quota=3Mi")...)
	if got := receive(); !strings.HasPrefix(got, "READY=1\n") {
		t.Fatalf("the first message is %q", got)
	}
	if status, body := server.mustGet(t, "/readyz/database-quota"); status != http.StatusInternalServerError {
		t.Errorf("/readyz/database-quota: %d %s", status, body)
	}
	client = kubernetes.NewForConfigOrDie(server.config(t))
	if _, err := client.RbacV1().ClusterRoleBindings().Get(t.Context(), binding, metav1.GetOptions{}); err != nil {
		t.Errorf("the server's own object: %v", err)
	}
	storetest.EventuallyDone(t, "the server has an identity Lease", func(ctx context.Context) (bool, error) {
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
	// Before the stop, which may come while controllers start and log that they can't.
	if lines := server.loggedErrors(); len(lines) != 1 || !strings.Contains(lines[0], "reached its quota") {
		t.Errorf("the log has the errors %q", lines)
	}
}

// loggedErrors returns the lines of errors in the log.
func (p *serverProcess) loggedErrors() []string {
	return regexp.MustCompile("(?m)^E.*").FindAllString(p.log.String(), -1)
}

// A replica that is started at the quota gets back into the kubernetes Service, which it left when
// it stopped.
func TestReplicas_PublishEndpointsAtTheQuota(t *testing.T) {
	t.Parallel()
	flags := []string{"--endpoint", pgtest.DSN(t), "--cert-dir", t.TempDir(), "--database-quota=3Mi"}
	first := startServer(t, t.TempDir(), append(flags, "--advertise-address=192.0.2.1")...)
	dir, second := t.TempDir(), append(flags, "--advertise-address=192.0.2.2")
	stopped := startServer(t, dir, second...)
	client := kubernetes.NewForConfigOrDie(first.config(t))
	waitForEndpoints(t, client, "192.0.2.1", "192.0.2.2")
	fillQuota(t, client)
	stopped.stop(t)
	waitForEndpoints(t, client, "192.0.2.1")
	restarted := command(t, dir, serveArgs(dir, second...)...)
	waitForEndpoints(t, client, "192.0.2.1", "192.0.2.2")
	for _, line := range restarted.loggedErrors() {
		if !strings.Contains(line, "reached its quota") {
			t.Errorf("the log has the error %q", line)
		}
	}
}

// fillQuota creates objects until the quota is reached.
func fillQuota(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	storetest.Eventually(t, "the quota is reached", func() bool {
		_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
			// PostgreSQL would compress another text.
			ObjectMeta: metav1.ObjectMeta{GenerateName: "big-"}, Data: map[string]string{"a": randomText(500_000)},
		}, metav1.CreateOptions{})
		return err != nil
	})
}

// listenForSystemd makes the socket that systemd reads for Type=notify, and returns what reads the
// next message from it, and the environment of the program that writes to it.
func listenForSystemd(t *testing.T) (receive func() string, env []string) {
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
	}, []string{"NOTIFY_SOCKET=" + socket}
}

// TestSystemd_IsNotifiedOfStartLifeAndStop reads the socket that systemd reads for
// Type=notify and WatchdogSec=.
func TestSystemd_IsNotifiedOfStartLifeAndStop(t *testing.T) {
	t.Parallel()
	receive, env := listenForSystemd(t)
	data := t.TempDir()
	server := commandWith(t, append(env, "WATCHDOG_USEC=30000000"), data, serveArgs(data)...)
	if got := receive(); !strings.HasPrefix(got, "READY=1\nSTATUS=Serving on 127.0.0.1:") {
		t.Fatalf("the first message is %q", got)
	}
	if status, body := server.mustGet(t, "/readyz"); status != http.StatusOK {
		t.Errorf("/readyz after READY=1: %d %s", status, body)
	}
	for _, want := range []string{"WATCHDOG_USEC=30000000", "WATCHDOG=1"} {
		if got := receive(); got != want {
			t.Errorf("the message is %q, want %q", got, want)
		}
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
