package controlplane

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"byre/sqlstore/storetest"
)

// testKilledServers kills each server in turn in the middle of a rollout, as often as
// -kills says, while a client writes. It then looks whether anything was lost: Pods,
// acknowledged writes, events of informers.
func testKilledServers(t *testing.T, c *cluster) {
	const ns = "killed"
	c.namespace(t, ns)
	caches := c.startInformers(t, ns)
	c.createDeployment(t, ns, deployment(int32(*rolloutPods)))
	c.awaitRollout(t, ns, firstImage, *rolloutPods)

	w := startWriter(t, c, ns)
	var image string
	for n := range *kills {
		for i, r := range c.replicas {
			image = fmt.Sprintf("example.com/web:kill-%d-%d", n, i)
			c.setImage(t, ns, image)
			c.awaitPods(t, ns, image, *rolloutPods/4)
			r.server.Kill()
			if len(c.replicas) > 1 { // the rollout goes on without it
				c.awaitPods(t, ns, image, *rolloutPods/2)
			}
			r.start(t)
			c.awaitRollout(t, ns, image, *rolloutPods)
		}
	}
	w.check(t, c, ns)
	caches.check(t)
}

// awaitPods waits until at least n Pods have an image.
func (c *cluster) awaitPods(t *testing.T, namespace, image string, n int) {
	t.Helper()
	storetest.EventuallySucceeds(t, fmt.Sprintf("%d Pods of %s", n, image), func() error {
		pods, err := c.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		have := 0
		for _, pod := range pods.Items {
			if pod.Spec.Containers[0].Image == image {
				have++
			}
		}
		if have < n {
			return fmt.Errorf("there are %d", have)
		}
		return nil
	})
}

// writer creates ConfigMaps, one after the other, and knows which of them were
// acknowledged.
type writer struct {
	stop  func()
	names []string
}

func startWriter(t *testing.T, c *cluster, namespace string) *writer {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &writer{}
	var running sync.WaitGroup
	w.stop = func() { cancel(); running.Wait() }
	t.Cleanup(w.stop)
	running.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			name := fmt.Sprintf("written-%d", i)
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
			// A write fails if its server is killed meanwhile.
			if _, err := c.client.CoreV1().ConfigMaps(namespace).Create(ctx, cm, metav1.CreateOptions{}); err == nil ||
				apierrors.IsAlreadyExists(err) {
				w.names = append(w.names, name)
			}
		}
	})
	return w
}

func (w *writer) check(t *testing.T, c *cluster, namespace string) {
	t.Helper()
	w.stop()
	list, err := c.client.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stored := map[string]bool{}
	for _, cm := range list.Items {
		stored[cm.Name] = true
	}
	if len(w.names) == 0 {
		t.Error("no write was acknowledged")
	}
	for _, name := range w.names {
		if !stored[name] {
			t.Errorf("%s was acknowledged and is gone", name)
		}
	}
}

// watched are informers' caches of one namespace.
type watched struct {
	stores map[string]cache.Store
	lists  map[string]func(context.Context) (runtime.Object, error)
}

func (c *cluster) startInformers(t *testing.T, namespace string) *watched {
	t.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(c.client, 0, informers.WithNamespace(namespace))
	all := metav1.ListOptions{}
	w := &watched{
		stores: map[string]cache.Store{
			"Pods":        factory.Core().V1().Pods().Informer().GetStore(),
			"ConfigMaps":  factory.Core().V1().ConfigMaps().Informer().GetStore(),
			"ReplicaSets": factory.Apps().V1().ReplicaSets().Informer().GetStore(),
			"Deployments": factory.Apps().V1().Deployments().Informer().GetStore(),
			"Events":      factory.Core().V1().Events().Informer().GetStore(),
		},
		lists: map[string]func(context.Context) (runtime.Object, error){
			"Pods": func(ctx context.Context) (runtime.Object, error) {
				return c.client.CoreV1().Pods(namespace).List(ctx, all)
			},
			"ConfigMaps": func(ctx context.Context) (runtime.Object, error) {
				return c.client.CoreV1().ConfigMaps(namespace).List(ctx, all)
			},
			"ReplicaSets": func(ctx context.Context) (runtime.Object, error) {
				return c.client.AppsV1().ReplicaSets(namespace).List(ctx, all)
			},
			"Deployments": func(ctx context.Context) (runtime.Object, error) {
				return c.client.AppsV1().Deployments(namespace).List(ctx, all)
			},
			"Events": func(ctx context.Context) (runtime.Object, error) {
				return c.client.CoreV1().Events(namespace).List(ctx, all)
			},
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return w
}

// check compares the caches with fresh lists.
func (w *watched) check(t *testing.T) {
	t.Helper()
	for kind, list := range w.lists {
		storetest.EventuallySucceeds(t, "the informer's cache of "+kind+" equals a list", func() error {
			fresh, err := list(t.Context())
			if err != nil {
				return err
			}
			items, err := meta.ExtractList(fresh)
			if err != nil {
				return err
			}
			want, got := map[string]string{}, map[string]string{}
			for _, item := range items {
				note(t, want, item)
			}
			for _, item := range w.stores[kind].List() {
				note(t, got, item)
			}
			if !maps.Equal(want, got) {
				return fmt.Errorf("the cache has %d objects, the list has %d, or some differ", len(got), len(want))
			}
			return nil
		})
	}
}

func note(t *testing.T, versions map[string]string, object any) {
	t.Helper()
	m, err := meta.Accessor(object)
	if err != nil {
		t.Fatal(err)
	}
	versions[m.GetName()] = m.GetResourceVersion()
}
