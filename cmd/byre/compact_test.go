package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"byre/sqlstore/storetest"
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
		expectFailure(t, "all younger than --keep 1h0m0s: --keep 0 deletes them too", "compact", "--data-dir", dir, "--keep=1h")
		resume := metav1.ListOptions{ResourceVersion: made.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact}
		if _, err := kube.CoreV1().ConfigMaps("default").List(t.Context(), resume); err != nil {
			t.Errorf("what is younger than --keep is gone: %v", err)
		}
		if err := kube.CoreV1().ConfigMaps("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		succeed(t, "compact", "--data-dir", dir, "--keep=0s")
		expectFailure(t, "--keep must not be negative", "compact", "--data-dir", dir, "--keep=-1s")
		// The feed of a server learns of a compaction with the next change.
		storetest.EventuallyDone(t, "the history is gone", func(ctx context.Context) (bool, error) {
			_, err := kube.CoreV1().ConfigMaps("default").List(ctx, resume)
			return err != nil, nil
		})
		if len(flags) == 0 {
			expectWhyNotAsked(t, dir)
		}
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
	})
}

// A compaction of one resource leaves the past of the others: a list reads it, and a watch resumes
// from it, on a server that has none of it in memory. In a new epoch no resource has it.
func TestCompact_LeavesThePastOfOtherResources(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		dir, restored := t.TempDir(), "sqlite://"+t.TempDir()+"/byre.db"
		endpoint := "sqlite://" + dir + "/byre.db"
		if len(flags) > 0 {
			endpoint = flags[1]
		}
		server := startServer(t, dir, append([]string{"--controllers="}, flags...)...)
		kube := kubernetes.NewForConfigOrDie(server.config(t))
		made, err := kube.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		changed := made.DeepCopy()
		changed.Data = map[string]string{"a": "b"}
		if _, err := kube.CoreV1().ConfigMaps("default").Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		for range 3 {
			if lease, err = kube.CoordinationV1().Leases("default").Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := kube.CoordinationV1().Leases("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			lease.ObjectMeta = metav1.ObjectMeta{Name: "a"}
		}
		succeed(t, "compact", "--data-dir", dir, "--resource=leases.coordination.k8s.io")
		server.stop(t)
		server = startServer(t, dir, append([]string{"--controllers="}, flags...)...)
		kube = kubernetes.NewForConfigOrDie(server.config(t))

		at := metav1.ListOptions{ResourceVersion: made.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact, Limit: 1}
		from := metav1.ListOptions{ResourceVersion: made.ResourceVersion}
		listed, err := kube.CoreV1().ConfigMaps("default").List(t.Context(), at)
		if err != nil || len(listed.Items) != 1 || len(listed.Items[0].Data) != 0 {
			t.Errorf("list of what is kept: %+v, %v", listed, err)
		}
		event, err := firstEvent(kube.CoreV1().ConfigMaps("default").Watch(t.Context(), from))
		if configMap, ok := event.Object.(*corev1.ConfigMap); err != nil || event.Type != watch.Modified || !ok || configMap.Data["a"] != "b" {
			t.Errorf("watch of what is kept: %+v, %v", event, err)
		}
		expectGone := func(what string, err error) {
			t.Helper()
			if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err = kube.CoordinationV1().Leases("default").List(t.Context(), at)
		expectGone("list of what is compacted", err)
		_, err = firstEvent(kube.CoordinationV1().Leases("default").Watch(t.Context(), from))
		expectGone("watch of what is compacted", err)
		server.stop(t)

		succeed(t, "restore", "--from", endpoint, "--endpoint", restored)
		kube = kubernetes.NewForConfigOrDie(startServer(t, dir, "--controllers=", "--endpoint", restored).config(t))
		_, err = kube.CoreV1().ConfigMaps("default").List(t.Context(), at)
		expectGone("list in a new epoch", err)
		_, err = firstEvent(kube.CoreV1().ConfigMaps("default").Watch(t.Context(), from))
		expectGone("watch in a new epoch", err)
		_, err = kube.CoreV1().Secrets("default").List(t.Context(), at)
		expectGone("list of a resource without changes in a new epoch", err)
		_, err = firstEvent(kube.AppsV1().Deployments("default").Watch(t.Context(), from))
		expectGone("watch of a resource without objects in a new epoch", err)
	})
}

// firstEvent returns the first event of a watch. An event that is an error is returned as an error.
func firstEvent(watching watch.Interface, err error) (watch.Event, error) {
	if err != nil {
		return watch.Event{}, err
	}
	defer watching.Stop()
	event := <-watching.ResultChan()
	if event.Type == watch.Error {
		return event, apierrors.FromObject(event.Object)
	}
	return event, nil
}

// expectWhyNotAsked: where the server can't be asked and has its database locked, the error says why it can't be asked.
func expectWhyNotAsked(t *testing.T, dir string) {
	t.Helper()
	kubeconfig := filepath.Join(dir, "admin.kubeconfig")
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		*user = clientcmdapi.AuthInfo{Token: "of nobody"}
	}
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	expectFailure(t, "): no server can be asked with admin.kubeconfig: the server has asked for the client to provide credentials", "compact", "--data-dir", dir)
	expectFailure(t, "): name its --data-dir instead of --endpoint", "compact", "--endpoint", "sqlite://"+dir+"/byre.db")
}
