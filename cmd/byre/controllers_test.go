package main

import (
	"context"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"

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
	if _, err := client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "later"}}, metav1.CreateOptions{}); err != nil {
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
			_, err := client.AppsV1().Deployments("default").Patch(ctx, "web", types.MergePatchType, patch,
				metav1.PatchOptions{})
			return err
		},
		{Resource: "pods"}: func(ctx context.Context, patch []byte) error {
			pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
			if err != nil || len(pods.Items) == 0 {
				return fmt.Errorf("no Pod of the Deployment: %w", err)
			}
			_, err = client.CoreV1().Pods("default").Patch(ctx, pods.Items[0].Name, types.MergePatchType, patch,
				metav1.PatchOptions{})
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
				Name: "c", Image: "example.com/trainer",
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
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
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "deleted", UID: "1",
				Controller: new(true)}},
		},
		// On a node, a kubelet would have to end it.
		Spec: corev1.PodSpec{NodeSelector: map[string]string{"no": "node"},
			Containers: []corev1.Container{{Name: "c", Image: "example.com/c"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the garbage collector and the Job controller delete the Pod",
		func(ctx context.Context) (bool, error) {
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
	status := fmt.Sprintf(
		`{"status":{"phase":"Running","podIP":%[1]q,"podIPs":[{"ip":%[1]q}],"conditions":[{"type":"Ready","status":"True"}]}}`, address)
	if _, err := pods.Patch(t.Context(), app, types.StrategicMergePatchType, []byte(status), metav1.PatchOptions{},
		"status"); err != nil {
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
	if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// Controllers may have changed the Node by now: an update would be a conflict.
	status := fmt.Sprintf(
		`{"status":{"capacity":%[1]s,"allocatable":%[1]s,"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":%[2]q}]}}`,
		`{"cpu":"4","memory":"8Gi","pods":"110"}`, time.Now().UTC().Format(time.RFC3339))
	if _, err := nodes.Patch(t.Context(), name, types.StrategicMergePatchType, []byte(status), metav1.PatchOptions{},
		"status"); err != nil {
		t.Fatal(err)
	}
}

// controllerManagerLease is the Lease of a kube-controller-manager that leads.
func controllerManagerLease(holder string) *coordinationv1.Lease {
	now := metav1.NowMicro()
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-controller-manager"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: new(int32((time.Hour / time.Second))), AcquireTime: &now,
			RenewTime: &now,
		},
	}
}

// TestControllers_ThatRunByDefaultDoTheirWork checks what each controller brings about that
// runs without flags, on a server without a kube-controller-manager. Of these controllers,
// the other tests of this package have those of namespaces, garbage, accounts and quotas.
func TestControllers_ThatRunByDefaultDoTheirWork(t *testing.T) {
	t.Parallel()
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startServer(t, t.TempDir(), append(flags(t), "--enable-bootstrap-token-auth")...)
			client := kubernetes.NewForConfigOrDie(server.config(t))
			// This controller works every 20 seconds. It starts with the first Node, which is
			// this test's: the others run later.
			t.Run("garbage collection of Pods", func(t *testing.T) { testPodGarbageCollection(t, client) })
			for _, test := range []struct {
				name string
				run  func(*testing.T, kubernetes.Interface)
			}{
				{"aggregation of roles", testRoleAggregation},
				{"endpoints", testEndpoints},
				{"mirrored endpoints", testMirroring},
				{"eviction by taints", testTaintEviction},
				{"the CA as a trust bundle", testTrustBundle},
				{"finished Jobs", testFinishedJob},
				{"protection of claims", testClaimProtection},
				{"protection of volumes", testVolumeProtection},
				{"binding of volumes", testVolumeBinding},
			} {
				t.Run(test.name, func(t *testing.T) {
					t.Parallel()
					test.run(t, client)
				})
			}
			t.Run("garbage collection of definitions", func(t *testing.T) {
				t.Parallel()
				testDefinitionGarbageCollection(t, server.config(t))
			})
			t.Run("certificate of a client", func(t *testing.T) {
				t.Parallel()
				testClientCertificate(t, server.config(t))
			})
			t.Run("certificate of a kubelet", func(t *testing.T) {
				t.Parallel()
				testKubeletCertificate(t, server.config(t))
			})
		})
	}
}

// testDefinitionGarbageCollection deletes the owner of a definition and of an APIService, which servers of their own
// store.
func testDefinitionGarbageCollection(t *testing.T, config *rest.Config) {
	roles := kubernetes.NewForConfigOrDie(config).RbacV1().ClusterRoles()
	owner, err := roles.Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "installer"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var owned []dynamic.ResourceInterface
	var names []string
	for _, o := range []struct {
		resource             schema.GroupVersionResource
		kind, name, contents string
	}{
		{schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
			"CustomResourceDefinition", "owned.example.com", `{"group":"example.com","scope":"Cluster",
				"names":{"plural":"owned","kind":"Owned"},"versions":[{"name":"v1","served":true,"storage":true,
				"schema":{"openAPIV3Schema":{"type":"object"}}}]}`},
		{schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
			"APIService", "v1.owned.example.com", `{"group":"owned.example.com","version":"v1","groupPriorityMinimum":100,
				"versionPriority":100,"insecureSkipTLSVerify":true,"service":{"namespace":"default","name":"none"}}`},
	} {
		object := &unstructured.Unstructured{}
		text := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"ownerReferences":[{"kind":"ClusterRole",
			"apiVersion":"rbac.authorization.k8s.io/v1","name":%q,"uid":%q}]},"spec":%s}`,
			o.resource.GroupVersion(), o.kind, o.name, owner.Name, owner.UID, o.contents)
		if err := object.UnmarshalJSON([]byte(text)); err != nil {
			t.Fatal(err)
		}
		objects := dynamic.NewForConfigOrDie(config).Resource(o.resource)
		if _, err := objects.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		owned, names = append(owned, objects), append(names, o.name)
	}
	if err := roles.Delete(t.Context(), owner.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for i, objects := range owned {
		storetest.EventuallyDone(t, names[i]+" is deleted with its owner", func(ctx context.Context) (bool, error) {
			_, err := objects.Get(ctx, names[i], metav1.GetOptions{})
			return apierrors.IsNotFound(err), nil
		})
	}
}

func testRoleAggregation(t *testing.T, client kubernetes.Interface) {
	roles := client.RbacV1().ClusterRoles()
	rule := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{"gadgets"}}
	for _, role := range []*rbacv1.ClusterRole{
		{ObjectMeta: metav1.ObjectMeta{Name: "part", Labels: map[string]string{"part": "yes"}},
			Rules: []rbacv1.PolicyRule{rule}},
		{ObjectMeta: metav1.ObjectMeta{Name: "whole"}, AggregationRule: &rbacv1.AggregationRule{
			ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"part": "yes"}}},
		}},
	} {
		if _, err := roles.Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	storetest.EventuallyDone(t, "the role has the rules of its part", func(ctx context.Context) (bool, error) {
		whole, err := roles.Get(ctx, "whole", metav1.GetOptions{})
		return err == nil && len(whole.Rules) == 1 && slices.Equal(whole.Rules[0].Resources, rule.Resources), err
	})
}

// testTrustBundle expects what the first Pod needs that mounts the server's CA.
func testTrustBundle(t *testing.T, client kubernetes.Interface) {
	storetest.EventuallyDone(t, "a ClusterTrustBundle", func(ctx context.Context) (bool, error) {
		list, err := client.CertificatesV1().ClusterTrustBundles().List(ctx, metav1.ListOptions{
			FieldSelector: "spec.signerName=kubernetes.io/kube-apiserver-serving",
		})
		return err == nil && len(list.Items) == 1 && strings.Contains(list.Items[0].Spec.TrustBundle, "BEGIN CERTIFICATE"),
			err
	})
}

func testEndpoints(t *testing.T, client kubernetes.Interface) {
	const address = "192.0.2.7"
	createService(t, client, "web")
	createReadyNode(t, client, "node1")
	createReadyPod(t, client, "web", "node1", address)
	storetest.EventuallyDone(t, "a ready endpoint", func(ctx context.Context) (bool, error) {
		list, err := client.DiscoveryV1().EndpointSlices("default").List(ctx, ofService("web"))
		if err != nil || len(list.Items) != 1 || len(list.Items[0].Endpoints) != 1 {
			return false, err
		}
		found := list.Items[0]
		return found.Endpoints[0].Addresses[0] == address && *found.Endpoints[0].Conditions.Ready &&
			*found.Ports[0].Port == 8080, nil
	})
	storetest.EventuallyDone(t, "an address of the Endpoints", func(ctx context.Context) (bool, error) {
		found, err := client.CoreV1().Endpoints("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil || len(found.Subsets) != 1 || len(found.Subsets[0].Addresses) != 1 {
			return false, err
		}
		subset := found.Subsets[0]
		return subset.Addresses[0].IP == address && subset.Ports[0].Port == 8080, nil
	})
}

// testMirroring writes Endpoints of a Service that has no selector.
func testMirroring(t *testing.T, client kubernetes.Interface) {
	const name, address = "outside", "192.0.2.9"
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 5432}}}}
	if _, err := client.CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	endpoints := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: address}}, Ports: []corev1.EndpointPort{{Port: 5432}},
		}},
	}
	if _, err := client.CoreV1().Endpoints("default").Create(t.Context(), endpoints, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "an EndpointSlice that mirrors the Endpoints", func(ctx context.Context) (bool, error) {
		list, err := client.DiscoveryV1().EndpointSlices("default").List(ctx, ofService(name))
		if err != nil || len(list.Items) != 1 || len(list.Items[0].Endpoints) != 1 {
			return false, err
		}
		found := list.Items[0]
		return found.Labels[discoveryv1.LabelManagedBy] == "endpointslicemirroring-controller.k8s.io" &&
			found.Endpoints[0].Addresses[0] == address && *found.Ports[0].Port == 5432, nil
	})
}

func testTaintEviction(t *testing.T, client kubernetes.Interface) {
	createReadyNode(t, client, "tainted")
	createReadyPod(t, client, "evicted", "tainted", "192.0.2.8")
	taint := []byte(`{"spec":{"taints":[{"key":"k","effect":"NoExecute"}]}}`)
	if _, err := client.CoreV1().Nodes().Patch(t.Context(), "tainted", types.MergePatchType, taint,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the Pod is evicted", func(ctx context.Context) (bool, error) {
		pod, err := client.CoreV1().Pods("default").Get(ctx, "evicted", metav1.GetOptions{})
		return err == nil && pod.DeletionTimestamp != nil, err
	})
}

// testPodGarbageCollection deletes a Pod of a node that is out of service: no kubelet will
// say that the Pod has ended.
func testPodGarbageCollection(t *testing.T, client kubernetes.Interface) {
	const node = "broken"
	createReadyPod(t, client, "left", node, "192.0.2.10")
	pods := client.CoreV1().Pods("default")
	if err := pods.Delete(t.Context(), "left", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Get(t.Context(), "left", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: corev1.TaintNodeOutOfService,
			Effect: corev1.TaintEffectNoExecute}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the Pod is gone", func(ctx context.Context) (bool, error) {
		_, err := pods.Get(ctx, "left", metav1.GetOptions{})
		return isGone(err)
	})
}

func testFinishedJob(t *testing.T, client kubernetes.Interface) {
	jobs := client.BatchV1().Jobs("default")
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "done"}, Spec: batchv1.JobSpec{
		TTLSecondsAfterFinished: new(int32(0)),
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "example.com/work"}},
		}},
	}}
	if _, err := jobs.Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const at = "2026-01-02T03:04:05Z"
	status := fmt.Sprintf(`{"status":{"startTime":%[1]q,"completionTime":%[1]q,"succeeded":1,"conditions":[`+
		`{"type":"SuccessCriteriaMet","status":"True","lastTransitionTime":%[1]q},{"type":"Complete","status":"True","lastTransitionTime":%[1]q}]}}`, at)
	if _, err := jobs.Patch(t.Context(), "done", types.MergePatchType, []byte(status), metav1.PatchOptions{},
		"status"); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the Job is gone", func(ctx context.Context) (bool, error) {
		_, err := jobs.Get(ctx, "done", metav1.GetOptions{})
		return isGone(err)
	})
}

func testClaimProtection(t *testing.T, client kubernetes.Interface) {
	claims := client.CoreV1().PersistentVolumeClaims("default")
	createClaim(t, client, "data")
	if err := claims.Delete(t.Context(), "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the claim is gone", func(ctx context.Context) (bool, error) {
		_, err := claims.Get(ctx, "data", metav1.GetOptions{})
		return isGone(err)
	})
}

func testVolumeProtection(t *testing.T, client kubernetes.Interface) {
	volumes := client.CoreV1().PersistentVolumes()
	createVolume(t, client, "protected")
	if err := volumes.Delete(t.Context(), "protected", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the volume is gone", func(ctx context.Context) (bool, error) {
		_, err := volumes.Get(ctx, "protected", metav1.GetOptions{})
		return isGone(err)
	})
}

func testVolumeBinding(t *testing.T, client kubernetes.Interface) {
	createVolume(t, client, "bound")
	// The controller has to know the volume first: it looks at a claim that it found no volume
	// for 15 seconds later.
	storetest.EventuallyDone(t, "the volume is available", func(ctx context.Context) (bool, error) {
		volume, err := client.CoreV1().PersistentVolumes().Get(ctx, "bound", metav1.GetOptions{})
		return err == nil && volume.Status.Phase == corev1.VolumeAvailable, err
	})
	createClaim(t, client, "bound")
	storetest.EventuallyDone(t, "the claim and the volume are bound", func(ctx context.Context) (bool, error) {
		claim, err := client.CoreV1().PersistentVolumeClaims("default").Get(ctx, "bound", metav1.GetOptions{})
		if err != nil || claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName != "bound" {
			return false, err
		}
		volume, err := client.CoreV1().PersistentVolumes().Get(ctx, "bound", metav1.GetOptions{})
		return err == nil && volume.Status.Phase == corev1.VolumeBound, err
	})
}

var oneGibibyte = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}

// createVolume creates a volume that only a claim of the same name can be bound to.
func createVolume(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: oneGibibyte, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: name,
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}},
	}}
	if _, err := client.CoreV1().PersistentVolumes().Create(t.Context(), volume, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func createClaim(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &name,
			Resources: corev1.VolumeResourceRequirements{Requests: oneGibibyte},
		}}
	if _, err := client.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), claim,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// isGone reports whether err, the error of a read, says that the object does not exist. It
// returns any other error.
func isGone(err error) (bool, error) {
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return false, err
}

// ofService selects the EndpointSlices of a Service.
func ofService(name string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name}
}

// testClientCertificate approves a request by hand and uses the certificate.
func testClientCertificate(t *testing.T, config *rest.Config) {
	client := kubernetes.NewForConfigOrDie(config)
	request, key := certificateRequest(t, "jane", certificatesv1.KubeAPIServerClientSignerName,
		pkix.Name{CommonName: "jane"})
	if _, err := client.CertificatesV1().CertificateSigningRequests().Create(t.Context(), request,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	approve(t, client, "jane")
	authenticates(t, config, "jane", key, "jane")
}

// testKubeletCertificate requests a certificate as a kubelet that has nothing but a bootstrap
// token. Nobody approves the request by hand.
func testKubeletCertificate(t *testing.T, config *rest.Config) {
	const id, secret, group = "abcdef", "0123456789abcdef", "system:bootstrappers:nodes"
	client := kubernetes.NewForConfigOrDie(config)
	token := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id, Namespace: "kube-system"},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true", "auth-extra-groups": group,
		},
	}
	if _, err := client.CoreV1().Secrets("kube-system").Create(t.Context(), token, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, role := range map[string]string{
		"bootstrap": "system:node-bootstrapper",
		"approve":   "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
	} {
		_, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	bootstrap := rest.AnonymousClientConfig(config)
	bootstrap.BearerToken = id + "." + secret
	requests := kubernetes.NewForConfigOrDie(bootstrap).CertificatesV1().CertificateSigningRequests()
	request, key := certificateRequest(t, "edge", certificatesv1.KubeAPIServerClientKubeletSignerName,
		pkix.Name{CommonName: "system:node:edge", Organization: []string{"system:nodes"}})
	// The server reads tokens and bindings from caches.
	storetest.EventuallyDone(t, "the request is accepted", func(ctx context.Context) (bool, error) {
		_, err := requests.Create(ctx, request, metav1.CreateOptions{})
		return err == nil, err
	})
	authenticates(t, config, "edge", key, "system:node:edge")
}

// authenticates waits for the certificate of a request and checks whose it is for the server.
func authenticates(t *testing.T, config *rest.Config, request string, key []byte, user string) {
	t.Helper()
	requests := kubernetes.NewForConfigOrDie(config).CertificatesV1().CertificateSigningRequests()
	holder := rest.AnonymousClientConfig(config)
	holder.KeyData = key
	storetest.EventuallyDone(t, "a certificate", func(ctx context.Context) (bool, error) {
		found, err := requests.Get(ctx, request, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		holder.CertData = found.Status.Certificate
		return len(holder.CertData) > 0, nil
	})
	review, err := kubernetes.NewForConfigOrDie(holder).AuthenticationV1().SelfSubjectReviews().
		Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || review.Status.UserInfo.Username != user {
		t.Errorf("the certificate is that of %q, %v", review.Status.UserInfo.Username, err)
	}
}

// createExpiredRequest creates a CertificateSigningRequest whose certificate has expired.
func createExpiredRequest(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	requests := client.CertificatesV1().CertificateSigningRequests()
	// No controller of byre signs for this signer.
	request, data := certificateRequest(t, name, "example.com/signer", pkix.Name{CommonName: name})
	if _, err := requests.Create(t.Context(), request, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	approved := approve(t, client, name)
	key, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		t.Fatal(err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		t.Fatalf("the key is a %T", key)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-2 * time.Hour),
		NotAfter: time.Now().Add(-time.Hour)}
	der, err := x509.CreateCertificate(nil, template, template, signer.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	approved.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if _, err := requests.UpdateStatus(t.Context(), approved, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func approve(t *testing.T, client kubernetes.Interface, name string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	requests := client.CertificatesV1().CertificateSigningRequests()
	request, err := requests.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	request.Status.Conditions =
		[]certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved,
			Status: corev1.ConditionTrue}}
	if request, err = requests.UpdateApproval(t.Context(), name, request, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return request
}

// certificateRequest returns a request for a client's certificate, and the key in PEM.
func certificateRequest(
	t *testing.T, name, signer string, subject pkix.Name,
) (*certificatesv1.CertificateSigningRequest, []byte) {
	t.Helper()
	data, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	key, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(nil, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: signer,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, data
}
