package main

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/sqlstore/eventually"
	"byre/sqlstore/postgres/pgtest"
)

// TestReplicas_LeaderHandsOver runs two servers on one database, one of which leads and
// runs the controllers. When the leader stops, the other takes over.
func TestReplicas_LeaderHandsOver(t *testing.T) {
	t.Parallel()
	pki := t.TempDir()
	flags := []string{"--endpoint", pgtest.DSN(t), "--cert-dir", pki}
	first := startServer(t, t.TempDir(), flags...)
	leader := waitForLeader(t, kubernetes.NewForConfigOrDie(first.config(t)), "")
	second := startServer(t, t.TempDir(), flags...)
	client := kubernetes.NewForConfigOrDie(second.config(t))

	deleteNamespace(t, client, "before")
	if status := first.stop(t); status != 0 {
		t.Errorf("exit status of the first is %d", status)
	}
	// A leader that stops releases its Lease, so that no other process has to wait until it
	// expires.
	lease, err := client.CoordinationV1().Leases("kube-system").Get(t.Context(), "byre-controllers", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if holder := lease.Spec.HolderIdentity; holder != nil && *holder == leader {
		t.Errorf("after it has stopped, %s still holds the lease", leader)
	}
	waitForLeader(t, client, leader)
	deleteNamespace(t, client, "after")
}

// waitForLeader waits until another process than old runs the controllers.
func waitForLeader(t *testing.T, client kubernetes.Interface, old string) string {
	t.Helper()
	var holder string
	eventually.Done(t, "a leader", func(ctx context.Context) (bool, error) {
		lease, err := client.CoordinationV1().Leases("kube-system").Get(ctx, "byre-controllers", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil || lease.Spec.HolderIdentity == nil {
			return false, err
		}
		holder = *lease.Spec.HolderIdentity
		return holder != "" && holder != old, nil
	})
	return holder
}

// deleteNamespace creates a namespace and deletes it, for which a controller has to run.
func deleteNamespace(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	ctx := t.Context()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually.Done(t, "the namespace is deleted", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}
