package main

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// The log of a server with controllers, whose database is away until they have lost their Lease, and that goes on
// then, names the database once. What their requests in that moment run into, upstream's packages log.
func TestLog_OfAnOutageNamesItsCause(t *testing.T) {
	t.Parallel()
	cluster, err := pgtest.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Stop() }) // it says which signal ended the server
	server := startServer(t, t.TempDir(), "--endpoint", cluster.DSN("postgres"), "--with-controller-manager", "--with-scheduler")
	client := kubernetes.NewForConfigOrDie(server.config(t))
	waitForLeader(t, client, "")
	createReadyNode(t, client, "node1")
	if _, err := client.AppsV1().Deployments("default").Create(t.Context(), webDeployment("example.com/web:1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitRollout(t, client, "example.com/web:1")
	if lines := errorLine.FindAllString(server.log.String(), -1); len(lines) > 0 {
		t.Errorf("errors of a healthy server:\n%s", strings.Join(lines, "\n"))
	}
	if err := cluster.Halt(); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "a write is refused, which its client repeats ten times", func() bool {
		_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"}}, metav1.CreateOptions{})
		return err != nil
	})
	if err := cluster.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitForLeader(t, client, "")
	storetest.EventuallyDone(t, "the controllers go on", func(ctx context.Context) (bool, error) {
		deployment, err := client.AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if deployment.Spec.Template.Spec.Containers[0].Image == "example.com/web:1" {
			deployment.Spec.Template.Spec.Containers[0].Image = "example.com/web:2"
			_, err = client.AppsV1().Deployments("default").Update(ctx, deployment, metav1.UpdateOptions{})
			return false, err
		}
		return deployment.Status.ObservedGeneration == deployment.Generation, nil
	})
	if status := server.stop(t); status != 0 {
		t.Errorf("exit status %d", status)
	}
	lines := errorLine.FindAllString(server.log.String(), -1)
	named := 0
	for _, line := range lines {
		if strings.Contains(line, "store: the database") {
			named++
		}
	}
	if named != 1 {
		t.Errorf("errors of an outage:\n%s", strings.Join(lines, "\n"))
	}
}
