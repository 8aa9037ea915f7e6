package etcd

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"byre/e2e/programs"
	"byre/e2e/servers"
)

// TestAPIServer_CallsAsOnEtcd runs a stock kube-apiserver on etcd and on byre etcd, with a client that creates,
// updates, lists, watches and deletes until what it has read first is compacted. The client sees the same, and
// kube-apiserver calls the same methods in the same shapes and gets the same codes: line 41.
func TestAPIServer_CallsAsOnEtcd(t *testing.T) {
	programs.Night(t)
	if err := programs.Build(t.Context(), programs.APIServer); err != nil {
		t.Fatal(err)
	}
	calls := make([][]string, len(serverNames))
	t.Run("on", func(t *testing.T) {
		for i, name := range serverNames {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				etcd, _ := start(t, name)
				p := startProxy(t, etcd)
				through := *etcd
				through.URL = p.url
				server, err := servers.Stock{Dir: t.TempDir(), Etcd: &through, Args: []string{
					"--disable-admission-plugins=ServiceAccount", "--etcd-compaction-interval=5s", "--event-ttl=1m",
				}}.Start(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					server.Kill()
					server.Report(t)
				})
				useCluster(t, kubernetes.NewForConfigOrDie(server.Config(servers.AdminToken)))
				calls[i] = p.kinds()
			})
		}
	})
	for i, name := range serverNames {
		if diff := cmp.Diff(calls[0], calls[i]); diff != "" && len(calls[0]) > 0 && len(calls[i]) > 0 {
			t.Errorf("calls on etcd (-) and on %s (+):\n%s", name, diff)
		}
	}
}

// useCluster does what a cluster's clients do.
func useCluster(t *testing.T, c kubernetes.Interface) {
	const namespace, objects, page = "work", 40, 15
	ctx := t.Context()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{})
	check(err)
	maps := c.CoreV1().ConfigMaps(namespace)
	w, err := maps.Watch(ctx, metav1.ListOptions{})
	check(err)
	defer w.Stop()
	for i := range objects {
		_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m%02d", i)}},
			metav1.CreateOptions{})
		check(err)
	}
	_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m00"}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		t.Errorf("a second create answers: %v", err)
	}
	stale, err := maps.Get(ctx, "m01", metav1.GetOptions{})
	check(err)
	first := stale.DeepCopy()
	first.Data = map[string]string{"key": "value"}
	_, err = maps.Update(ctx, first, metav1.UpdateOptions{})
	check(err)
	if _, err := maps.Update(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an update of an old version answers: %v", err)
	}
	check(maps.Delete(ctx, "m02", metav1.DeleteOptions{}))
	check(maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=m03"}))
	var want []string
	for i := range objects {
		want = append(want, fmt.Sprintf("ADDED m%02d", i))
	}
	want = append(want, "MODIFIED m01", "DELETED m02", "DELETED m03")
	if diff := cmp.Diff(want, events(t, w, len(want))); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}

	old, err := maps.List(ctx, metav1.ListOptions{Limit: page})
	check(err)
	names := map[string]bool{}
	pages := 0
	for options := (metav1.ListOptions{Limit: page}); ; {
		list, err := maps.List(ctx, options)
		check(err)
		pages++
		for _, m := range list.Items {
			names[m.Name] = true
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	if pages != 3 || len(names) != objects-2 {
		t.Errorf("%d pages have %d names, want 3 and %d", pages, len(names), objects-2)
	}
	all, err := maps.List(ctx, metav1.ListOptions{})
	check(err)
	exact, err := maps.List(ctx, metav1.ListOptions{ResourceVersion: all.ResourceVersion,
		ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	check(err)
	if len(all.Items) != objects-2 || len(exact.Items) != objects-2 {
		t.Errorf("lists have %d and %d objects, want %d", len(all.Items), len(exact.Items), objects-2)
	}
	_, err = c.CoreV1().Events(namespace).Create(ctx, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "event"},
		InvolvedObject: corev1.ObjectReference{Namespace: namespace}}, metav1.CreateOptions{})
	check(err)

	// What the namespace controller does.
	check(c.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}))
	ns, err := c.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	check(err)
	check(maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	ns.Spec.Finalizers = nil
	_, err = c.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{})
	check(err)
	if _, err := c.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the deleted namespace answers: %v", err)
	}

	expires(t, "a continue token", func() error {
		_, err := maps.List(ctx, metav1.ListOptions{Limit: page, Continue: old.Continue})
		return err
	})
	expires(t, "a list of the past", func() error {
		_, err := maps.List(ctx, metav1.ListOptions{ResourceVersion: old.ResourceVersion,
			ResourceVersionMatch: metav1.ResourceVersionMatchExact})
		return err
	})
}

// events are the types and names of the next n events.
func events(t *testing.T, w watch.Interface, n int) (all []string) {
	t.Helper()
	timeout := time.After(time.Minute)
	for range n {
		select {
		case e := <-w.ResultChan():
			m, ok := e.Object.(*corev1.ConfigMap)
			if !ok {
				t.Fatalf("%v %v", e.Type, e.Object)
			}
			if m.Name != "kube-root-ca.crt" {
				all = append(all, fmt.Sprintf("%v %s", e.Type, m.Name))
			}
		case <-timeout:
			return append(all, "nothing")
		}
	}
	return all
}

// expires waits until a list at a revision that is about to be compacted is answered with 410.
func expires(t *testing.T, what string, list func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := list()
		if apierrors.IsResourceExpired(err) {
			return
		}
		if err != nil {
			t.Fatalf("%s answers: %v", what, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s has not expired within a minute", what)
		}
	}
}
