package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"byre/sqlstore/storetest"
)

// creators is the number of clients that create concurrently.
const creators = 64

// counted are kinds of objects that a quota counts in different ways: by the resources of a
// Pod, under a legacy name, and by the general count of a resource.
var counted = []struct {
	name   corev1.ResourceName // in the quota
	hard   int64
	others int64 // made by controllers in each namespace
	gvr    schema.GroupVersionResource
	object string // format of its name
}{
	{"pods", 50, 0, schema.GroupVersionResource{Version: "v1", Resource: "pods"},
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{"containers":[{"name":"c","image":"i"}]}}`},
	{"configmaps", 30, 1, schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q}}`},
	{"count/widgets.example.com", 20, 0,
		schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"},
		`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":%q}}`},
}

// On PostgreSQL there are two servers. There is no quota before the definition: a controller that runs counts the
// instances of a new one after a while.
func TestQuota_IsExact(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		first := startServer(t, t.TempDir(), flags...)
		servers := []*rest.Config{first.config(t)}
		if len(flags) > 0 {
			second := startServer(t, t.TempDir(), append(flags, "--cert-dir", filepath.Join(first.dir, "pki"))...)
			servers = append(servers, second.config(t))
		}
		testQuota(t, servers...)
	})
}

// testQuota has many clients create on all servers until they are refused, and once more
// after some objects were deleted.
func testQuota(t *testing.T, servers ...*rest.Config) {
	var clients []dynamic.Interface
	for _, config := range servers {
		config.QPS = -1
		clients = append(clients, dynamic.NewForConfigOrDie(config))
	}
	const ns = "bounded"
	kube := kubernetes.NewForConfigOrDie(servers[0])
	defineWidgets(t, clients[0])
	makeBounded(t, kube, ns)
	for _, kind := range counted {
		t.Run(kind.gvr.Resource, func(t *testing.T) {
			want := kind.hard - kind.others
			if made := createUntilFull(t, clients, kind.gvr, ns, kind.object, "first"); made != want {
				t.Errorf("%d of %d creators' objects were let in, want %d", made, creators, want)
			}
			checkUsed(t, kube, clients[0], kind.gvr, ns, kind.name, kind.hard)
			// As many objects as were deleted can be created again.
			const gone = 3
			for i := range int64(gone) {
				deleteOne(t, clients[0], kind.gvr, ns)
				storetest.EventuallyDone(t, "the quota is given back", func(ctx context.Context) (bool, error) {
					used, err := usedOf(ctx, kube, ns, kind.name)
					return used == kind.hard-i-1, err
				})
			}
			settle(t, kube, ns)
			if made := createUntilFull(t, clients, kind.gvr, ns, kind.object, "again"); made != gone {
				t.Errorf("after %d have gone %d were let in", gone, made)
			}
			checkUsed(t, kube, clients[0], kind.gvr, ns, kind.name, kind.hard)
		})
	}
}

func defineWidgets(t *testing.T, client dynamic.Interface) {
	t.Helper()
	definition := new(unstructured.Unstructured)
	err := definition.UnmarshalJSON([]byte(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},
		"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"})
	if _, err := definitions.Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the definition is served", func(ctx context.Context) (bool, error) {
		_, err := client.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1",
			Resource: "widgets"}).List(ctx, metav1.ListOptions{})
		return err == nil, nil
	})
}

// makeBounded creates a namespace with a quota of each counted kind, and waits until the
// controllers have created and counted the default objects.
func makeBounded(t *testing.T, kube kubernetes.Interface, ns string) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
	if _, err := kube.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the namespace has what controllers make", func(ctx context.Context) (bool, error) {
		_, noAccount := kube.CoreV1().ServiceAccounts(ns).Get(ctx, "default", metav1.GetOptions{})
		_, noCA := kube.CoreV1().ConfigMaps(ns).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return noAccount == nil && noCA == nil, nil
	})
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "bounds"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}}}
	for _, kind := range counted {
		quota.Spec.Hard[kind.name] = *resource.NewQuantity(kind.hard, resource.DecimalSI)
	}
	if _, err := kube.CoreV1().ResourceQuotas(ns).Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the quota is counted", func(ctx context.Context) (bool, error) {
		quota, err := kube.CoreV1().ResourceQuotas(ns).Get(ctx, "bounds", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, kind := range counted {
			if used, ok := quota.Status.Used[kind.name]; !ok || used.Value() != kind.others {
				return false, nil
			}
		}
		return true, nil
	})
	settle(t, kube, ns)
}

// settle waits until the quota has not changed for half a second, in which the server has
// committed fifty other writes. Upstream's controller repeats a count that conflicted with
// another change some milliseconds later; where the disk delays its write, it delays those of
// settle too. A count that runs while clients create misses objects that were admitted and
// not created yet, and so makes their quota free again.
func settle(t *testing.T, kube kubernetes.Interface, ns string) {
	t.Helper()
	const calm, writes = 500 * time.Millisecond, 50
	var seen string
	var since time.Time
	var written int
	storetest.EventuallyDone(t, "the quota is settled", func(ctx context.Context) (bool, error) {
		written++
		count := fmt.Appendf(nil, `{"metadata":{"annotations":{"writes":"%d"}}}`, written)
		if _, err := kube.CoreV1().Namespaces().Patch(ctx, ns, types.MergePatchType, count,
			metav1.PatchOptions{}); err != nil {
			return false, err
		}
		quota, err := kube.CoreV1().ResourceQuotas(ns).Get(ctx, "bounds", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if quota.ResourceVersion != seen {
			seen, since, written = quota.ResourceVersion, time.Now(), 0
		}
		return time.Since(since) > calm && written >= writes, nil
	})
}

// usedOf returns the quota's count.
func usedOf(ctx context.Context, kube kubernetes.Interface, ns string, name corev1.ResourceName) (int64, error) {
	quota, err := kube.CoreV1().ResourceQuotas(ns).Get(ctx, "bounds", metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	used := quota.Status.Used[name]
	return used.Value(), nil
}

// createUntilFull returns how many objects were admitted before each of the clients was
// refused by the quota. The names of the objects begin with prefix.
func createUntilFull(
	t *testing.T, clients []dynamic.Interface, gvr schema.GroupVersionResource, ns, format, prefix string,
) int64 {
	t.Helper()
	var made atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, creators)
	for w := range creators {
		client := clients[w%len(clients)].Resource(gvr).Namespace(ns)
		group.Go(func() {
			for i := 0; errs[w] == nil; i++ {
				object := new(unstructured.Unstructured)
				if err := object.UnmarshalJSON(fmt.Appendf(nil, format, fmt.Sprintf("%s-%d-%d", prefix, w, i))); err != nil {
					errs[w] = err
					return
				}
				_, err := client.Create(t.Context(), object, metav1.CreateOptions{})
				switch {
				case err == nil:
					made.Add(1)
				case apierrors.IsConflict(err): // conflicted with the other server's charge, and was not admitted
				case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
					return
				default:
					errs[w] = err
				}
			}
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return made.Load()
}

// checkUsed compares the quota's count with the number of objects.
func checkUsed(
	t *testing.T, kube kubernetes.Interface, client dynamic.Interface, gvr schema.GroupVersionResource, ns string,
	name corev1.ResourceName, want int64,
) {
	t.Helper()
	list, err := client.Resource(gvr).Namespace(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	used, err := usedOf(t.Context(), kube, ns, name)
	if err != nil {
		t.Fatal(err)
	}
	if actual := int64(len(list.Items)); actual != want || used != want {
		t.Errorf("there are %d, the quota says %d, want %d", actual, used, want)
	}
}

// deleteOne deletes one of the objects that the test created first.
func deleteOne(t *testing.T, client dynamic.Interface, gvr schema.GroupVersionResource, ns string) {
	t.Helper()
	objects := client.Resource(gvr).Namespace(ns)
	list, err := objects.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range list.Items {
		if strings.HasPrefix(item.GetName(), "first-") {
			if err := objects.Delete(t.Context(), item.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("nothing to delete")
}

// TestQuota_HasNoStatusWithoutUsage makes quotas that name more and more resources, and follows their statuses: none
// lacks the usage of a name, by which admission would refuse what the quota allows.
func TestQuota_HasNoStatusWithoutUsage(t *testing.T) {
	t.Parallel()
	onSharedServers(t, func(t *testing.T, s *sharedByre) { testQuotaStatuses(t, s.config(t), s.makeNamespace(t)) })
}

func testQuotaStatuses(t *testing.T, config *rest.Config, namespace string) {
	kube := kubernetes.NewForConfigOrDie(config)
	quotas := kube.CoreV1().ResourceQuotas(namespace)
	statuses, err := quotas.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer statuses.Stop()
	hard := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{
		"pods", "configmaps", "secrets", "services", "replicationcontrollers", "persistentvolumeclaims",
		"count/deployments.apps",
		"count/jobs.batch", "count/leases.coordination.k8s.io", "count/roles.rbac.authorization.k8s.io",
	} {
		hard[name] = resource.MustParse("9")
		quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{GenerateName: "q-"},
			Spec: corev1.ResourceQuotaSpec{Hard: hard}}
		if quota, err = quotas.Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for isCounted := false; !isCounted; {
			event := <-statuses.ResultChan()
			seen, ok := event.Object.(*corev1.ResourceQuota)
			if !ok {
				t.Fatalf("the watch ends with %v", event)
			}
			for limited := range seen.Status.Hard {
				if _, ok := seen.Status.Used[limited]; !ok {
					t.Errorf("after %s was named: a status of %s has no usage of %s", name, seen.Name, limited)
				}
			}
			isCounted = seen.Name == quota.Name && len(seen.Status.Used) == len(hard)
		}
	}
	// Each of the quotas counts it.
	created := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"}}
	if _, err := kube.CoreV1().ConfigMaps(namespace).Create(t.Context(), created, metav1.CreateOptions{}); err != nil {
		t.Errorf("where several quotas count a ConfigMap: %v", err)
	}
}
