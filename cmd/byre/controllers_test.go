package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"byre/sqlstore/storetest"
)

// While a kube-controller-manager holds its Lease, byre's controllers of workloads wait:
// two of them would write the same endpoints.
func TestControllers_PauseWhileAControllerManagerLeads(t *testing.T) {
	t.Parallel()
	server := startServer(t, t.TempDir())
	client := kubernetes.NewForConfigOrDie(server.config(t))
	createService(t, client, "first")
	awaitSlice(t, client, "first")
	leases := client.CoordinationV1().Leases("kube-system")
	lease, err := leases.Create(t.Context(), controllerManagerLease("another"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "the controllers pause", func() bool {
		return strings.Contains(server.log.String(), `"Paused, because another process leads"`)
	})
	createService(t, client, "second")
	createExpiredRequest(t, client, "expired")
	// The ServiceAccount controller does not wait: once it has done its work, a controller
	// of endpoints would have done its own.
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "later"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitAccount(t, client, "later")
	if n := slicesOf(t, client, "second"); n != 0 {
		t.Errorf("beside a kube-controller-manager the Service has %d EndpointSlices", n)
	}
	lease.Spec.HolderIdentity = nil
	if _, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitSlice(t, client, "second")
	// The cleaner of CertificateSigningRequests looks when it starts, and then every hour.
	storetest.EventuallyDone(t, "the expired request is gone", func(ctx context.Context) (bool, error) {
		_, err := client.CertificatesV1().CertificateSigningRequests().Get(ctx, "expired", metav1.GetOptions{})
		return isGone(err)
	})
}

// testStorageVersionMigration has every Deployment and Pod written again, one migration after the other. A migration
// waits until the garbage collector's watch has shown a revision that is not older than the migration. Without other
// events that is the next bookmark, within a minute, and then for its own next attempt.
func testStorageVersionMigration(t *testing.T, client kubernetes.Interface) {
	migrations := client.StoragemigrationV1().StorageVersionMigrations()
	changes := 0
	for resource, change := range map[metav1.GroupResource]func(context.Context, []byte) error{
		{Group: "apps", Resource: "deployments"}: func(ctx context.Context, patch []byte) error {
			_, err := client.AppsV1().Deployments("default").Patch(ctx, "web", types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		},
		{Resource: "pods"}: func(ctx context.Context, patch []byte) error {
			pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
			if err != nil || len(pods.Items) == 0 {
				return fmt.Errorf("no Pod of the Deployment: %w", err)
			}
			_, err = client.CoreV1().Pods("default").Patch(ctx, pods.Items[0].Name, types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	} {
		migration := &storagemigrationv1.StorageVersionMigration{
			ObjectMeta: metav1.ObjectMeta{Name: resource.Resource},
			Spec:       storagemigrationv1.StorageVersionMigrationSpec{Resource: resource},
		}
		if _, err := migrations.Create(t.Context(), migration, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		storetest.EventuallyDone(t, resource.Resource+" are migrated", func(ctx context.Context) (bool, error) {
			changes++
			if err := change(ctx, fmt.Appendf(nil, `{"metadata":{"annotations":{"changes":"%d"}}}`, changes)); err != nil {
				return false, err
			}
			got, err := migrations.Get(ctx, resource.Resource, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			if meta.IsStatusConditionTrue(got.Status.Conditions, string(storagemigrationv1.MigrationFailed)) {
				t.Fatalf("the migration has failed: %+v", got.Status)
			}
			return meta.IsStatusConditionTrue(got.Status.Conditions, string(storagemigrationv1.MigrationSucceeded)), nil
		})
	}
}

// testDeviceTaintEviction has the scheduler allocate a device of node1 to a Pod, and then
// taints the device.
func testDeviceTaintEviction(t *testing.T, client kubernetes.Interface) {
	const driver = "gpu.example.com"
	resources := client.ResourceV1()
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
	if _, err := resources.DeviceClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	slice, err := resources.ResourceSlices().Create(t.Context(), &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "node1"},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: driver, NodeName: new("node1"), Pool: resourcev1.ResourcePool{Name: "node1", ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: "gpu0"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = resources.ResourceClaims("default").Create(t.Context(), &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
			{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"}},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods := client.CoreV1().Pods("default")
	_, err = pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "trainer"},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("gpu")}},
			Containers: []corev1.Container{{
				Name: "c", Image: "example.com/trainer", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the Pod is bound", func(ctx context.Context) (bool, error) {
		pod, err := pods.Get(ctx, "trainer", metav1.GetOptions{})
		return err == nil && pod.Spec.NodeName == "node1", err
	})
	slice.Spec.Devices[0].Taints = []resourcev1.DeviceTaint{{Key: "k", Effect: resourcev1.DeviceTaintEffectNoExecute}}
	slice.Spec.Pool.Generation++
	if _, err := resources.ResourceSlices().Update(t.Context(), slice, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the Pod is evicted", func(ctx context.Context) (bool, error) {
		pod, err := pods.Get(ctx, "trainer", metav1.GetOptions{})
		return err == nil && pod.DeletionTimestamp != nil, err
	})
}

// testPodOfTheLastJob leaves a Pod of a Job that was deleted before its controller ran again.
func testPodOfTheLastJob(t *testing.T, client kubernetes.Interface) {
	awaitAccount(t, client, "default")
	pods := client.CoreV1().Pods("default")
	_, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "p", Finalizers: []string{batchv1.JobTrackingFinalizer},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "deleted", UID: "1", Controller: new(true)}},
		},
		// On a node, a kubelet would have to end it.
		Spec: corev1.PodSpec{NodeSelector: map[string]string{"no": "node"}, Containers: []corev1.Container{{Name: "c", Image: "example.com/c"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the garbage collector and the Job controller delete the Pod", func(ctx context.Context) (bool, error) {
		_, err := pods.Get(ctx, "p", metav1.GetOptions{})
		return isGone(err)
	})
}

func createService(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromString("http")}},
		},
	}
	if _, err := client.CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func slicesOf(t *testing.T, client kubernetes.Interface, service string) int {
	t.Helper()
	slices, err := client.DiscoveryV1().EndpointSlices("default").List(t.Context(), ofService(service))
	if err != nil {
		t.Fatal(err)
	}
	return len(slices.Items)
}

func awaitSlice(t *testing.T, client kubernetes.Interface, service string) {
	t.Helper()
	storetest.Eventually(t, "an EndpointSlice of "+service, func() bool { return slicesOf(t, client, service) > 0 })
}

func createReadyPod(t *testing.T, client kubernetes.Interface, app, node, address string) {
	t.Helper()
	awaitAccount(t, client, "default")
	pods := client.CoreV1().Pods("default")
	_, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: app, Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "c", Image: "example.com/web", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	status := fmt.Sprintf(`{"status":{"phase":"Running","podIP":%[1]q,"podIPs":[{"ip":%[1]q}],"conditions":[{"type":"Ready","status":"True"}]}}`, address)
	if _, err := pods.Patch(t.Context(), app, types.StrategicMergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

// awaitAccount waits for the ServiceAccount without which no Pod can be created in the
// namespace. A controller creates it, which starts when the server is ready.
func awaitAccount(t *testing.T, client kubernetes.Interface, namespace string) {
	t.Helper()
	storetest.EventuallyDone(t, "the ServiceAccount default of "+namespace, func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, err
	})
}

func createReadyNode(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	nodes := client.CoreV1().Nodes()
	if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// Controllers may have changed the Node by now: an update would be a conflict.
	status := fmt.Sprintf(`{"status":{"capacity":%[1]s,"allocatable":%[1]s,"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":%[2]q}]}}`,
		`{"cpu":"4","memory":"8Gi","pods":"110"}`, time.Now().UTC().Format(time.RFC3339))
	if _, err := nodes.Patch(t.Context(), name, types.StrategicMergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

// controllerManagerLease is the Lease of a kube-controller-manager that leads.
func controllerManagerLease(holder string) *coordinationv1.Lease {
	now := metav1.NowMicro()
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-controller-manager"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: new(int32((time.Hour / time.Second))), AcquireTime: &now, RenewTime: &now,
		},
	}
}
