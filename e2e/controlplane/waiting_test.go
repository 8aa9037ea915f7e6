package controlplane

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

// TestControllerManager_WaitsForByres starts upstream's kube-controller-manager beside a server that
// does its work: it waits, because the server holds its Lease. When the server goes on without
// controllers, upstream's takes the Lease and does the work.
func TestControllerManager_WaitsForByres(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := servers.Byre{Dir: filepath.Join(dir, "byre"), Args: []string{"--with-controller-manager"}}
	byre, err := config.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { byre.Kill() })
	client, err := kubernetes.NewForConfig(byre.Config(servers.AdminToken))
	if err != nil {
		t.Fatal(err)
	}
	isByres := func(holder string) bool { return strings.Contains(holder, "_byre-") }
	ours := awaitHolder(t, client, "byre holds the Lease", isByres)

	manager, err := servers.ControllerManager{Dir: dir, Server: byre, Args: []string{"-v=4"}}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		manager.Kill()
		manager.Report(t)
	})
	storetest.Eventually(t, "kube-controller-manager finds the Lease held", func() bool {
		return strings.Contains(manager.LogTail(), "held by")
	})
	if holder := awaitHolder(t, client, "the Lease is held", func(holder string) bool {
		return holder != ""
	}); holder != ours {
		t.Errorf("the Lease went from %s to %s", ours, holder)
	}

	config.Port = byre.URL[strings.LastIndex(byre.URL, ":")+1:]
	if err := byre.Stop(); err != nil {
		t.Fatalf("byre ended with: %v", err)
	}
	config.Args = []string{"--controllers="}
	if byre, err = config.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitHolder(t, client, "kube-controller-manager holds the Lease", func(holder string) bool {
		return holder != "" && !isByres(holder)
	})
	labels := map[string]string{"app": "web"}
	_, err = client.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/web"}}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "kube-controller-manager makes a Pod", func(ctx context.Context) (bool, error) {
		pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		return err == nil && len(pods.Items) == 1, err
	})
}

// awaitHolder waits until the holder of the Lease of kube-controller-manager is as isWanted says,
// and returns it.
func awaitHolder(
	t *testing.T, client kubernetes.Interface, what string, isWanted func(holder string) bool,
) (holder string) {
	t.Helper()
	storetest.EventuallyDone(t, what, func(ctx context.Context) (bool, error) {
		lease, err := client.CoordinationV1().Leases("kube-system").Get(ctx, "kube-controller-manager", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil || lease.Spec.HolderIdentity == nil {
			return false, err
		}
		holder = *lease.Spec.HolderIdentity
		if !isWanted(holder) {
			return false, fmt.Errorf("it is %s", holder)
		}
		return true, nil
	})
	return holder
}
