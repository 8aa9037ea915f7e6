package transfer

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

// checkUsable uses a server after an import as a cluster would: informers, the allocators of
// Services, updates, and the deletion of a namespace with all that is in it.
func (c *server) checkUsable(t *testing.T) {
	t.Helper()
	client, err := kubernetes.NewForConfig(c.Config(servers.AdminToken))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactory(client, 0)
	defer factory.Shutdown()
	defer cancel()
	secrets, pods := factory.Core().V1().Secrets(), factory.Core().V1().Pods()
	synced := []cache.InformerSynced{secrets.Informer().HasSynced, pods.Informer().HasSynced}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		t.Fatal("the informers do not sync")
	}

	c.checkAllocation(t, client)

	listed, err := client.CoreV1().Secrets("shop").List(ctx, metav1.ListOptions{})
	if err != nil || len(listed.Items) == 0 {
		t.Fatalf("%d secrets, %v", len(listed.Items), err)
	}
	secret := &listed.Items[0]
	secret.Annotations = map[string]string{"moved": "yes"}
	updated, err := client.CoreV1().Secrets("shop").Update(ctx, secret, metav1.UpdateOptions{})
	if err != nil {
		t.Fatalf("update of an imported secret at its resourceVersion: %v", err)
	}
	storetest.EventuallySucceeds(t, "the informer sees an update", func() error {
		seen, err := secrets.Lister().Secrets("shop").Get(secret.Name)
		if err == nil && seen.ResourceVersion != updated.ResourceVersion {
			err = errors.New("it has resourceVersion " + seen.ResourceVersion)
		}
		return err
	})

	// The namespace controller and the garbage collector of byre itself. A group whose server
	// is away would hold up the namespace, as with a stock server.
	if err := c.Dynamic.Resource(apiServices).Delete(ctx, "v1.metrics.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	now := int64(0)
	if err := client.CoreV1().Namespaces().Delete(ctx, "office", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallySucceeds(t, "a namespace goes with all that is in it", func() error {
		// There is no kubelet and no controller of volumes to remove their finalizers.
		if err := client.CoreV1().Pods("office").DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now},
			metav1.ListOptions{}); err != nil {
			return err
		}
		for _, kept := range []schema.GroupVersionResource{widgets, claims} {
			if err := c.removeFinalizers(ctx, kept, "office"); err != nil {
				return err
			}
		}
		namespace, err := client.CoreV1().Namespaces().Get(ctx, "office", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return fmt.Errorf("%w: %v", errStillThere, namespace.Status.Conditions)
	})
	storetest.EventuallySucceeds(t, "the informer sees it", func() error {
		left, err := pods.Lister().Pods("office").List(labels.Everything())
		if err == nil && len(left) > 0 {
			err = errStillThere
		}
		return err
	})
}

var (
	claims      = corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	widgets     = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
)

var errStillThere = errors.New("still there")

// removeFinalizers removes the finalizers, in place of the controllers that set them.
func (c *server) removeFinalizers(ctx context.Context, kept schema.GroupVersionResource, namespace string) error {
	resource := c.Dynamic.Resource(kept).Namespace(namespace)
	listed, err := resource.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, o := range listed.Items {
		_, err := resource.Patch(ctx, o.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
			metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// checkAllocation creates Services: none must be given an address or a port that another one has,
// and those that ask for one that is taken must be refused.
func (c *server) checkAllocation(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	all, err := client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	addresses, ports := map[string]bool{}, map[int32]bool{}
	for _, s := range all.Items {
		for _, ip := range s.Spec.ClusterIPs {
			if ip != corev1.ClusterIPNone {
				addresses[ip] = true
			}
		}
		for _, p := range s.Spec.Ports {
			if p.NodePort != 0 {
				ports[p.NodePort] = true
			}
		}
	}
	recorded, err := client.NetworkingV1().IPAddresses().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(recorded.Items) != len(addresses) {
		t.Errorf("%d IPAddresses for %d addresses of Services", len(recorded.Items), len(addresses))
	}
	for i := range 20 {
		s, err := client.CoreV1().Services("shop").Create(t.Context(), newService(fmt.Sprintf("new-%d", i)),
			metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if addresses[s.Spec.ClusterIP] || ports[s.Spec.Ports[0].NodePort] {
			t.Errorf("a new Service gets %s and port %d, which are taken", s.Spec.ClusterIP, s.Spec.Ports[0].NodePort)
		}
	}
	for port := range ports {
		taken := newService("taken")
		taken.Spec.Ports[0].NodePort = port
		if _, err := client.CoreV1().Services("shop").Create(t.Context(), taken,
			metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("a Service with the port %d of another one: %v", port, err)
		}
		break
	}
	for address := range addresses {
		taken := newService("taken")
		taken.Spec.ClusterIP = address
		if _, err := client.CoreV1().Services("shop").Create(t.Context(), taken,
			metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("a Service with the address %s of another one: %v", address, err)
		}
		break
	}
}

func newService(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}},
	}
}
