package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"byre/sqlstore/storetest"
)

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

func testRoleAggregation(t *testing.T, client kubernetes.Interface) {
	roles := client.RbacV1().ClusterRoles()
	rule := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{"gadgets"}}
	for _, role := range []*rbacv1.ClusterRole{
		{ObjectMeta: metav1.ObjectMeta{Name: "part", Labels: map[string]string{"part": "yes"}}, Rules: []rbacv1.PolicyRule{rule}},
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
		return err == nil && len(list.Items) == 1 && strings.Contains(list.Items[0].Spec.TrustBundle, "BEGIN CERTIFICATE"), err
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
		return found.Endpoints[0].Addresses[0] == address && *found.Endpoints[0].Conditions.Ready && *found.Ports[0].Port == 8080, nil
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
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 5432}}}}
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
	if _, err := client.CoreV1().Nodes().Patch(t.Context(), "tainted", types.MergePatchType, taint, metav1.PatchOptions{}); err != nil {
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
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}},
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
	if _, err := jobs.Patch(t.Context(), "done", types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
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
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &name,
		Resources: corev1.VolumeResourceRequirements{Requests: oneGibibyte},
	}}
	if _, err := client.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
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
