package main

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/keyutil"

	"byre/sqlstore/eventually"
)

// By default, a server without a kube-controller-manager runs upstream's controllers of
// Services, claims and certificates, each once there are objects for it.
func TestControllers_ServeServicesClaimsAndCertificates(t *testing.T) {
	t.Parallel()
	server := startServer(t, t.TempDir())
	client := kubernetes.NewForConfigOrDie(server.config(t))

	t.Run("endpoints", func(t *testing.T) {
		createService(t, client, "web")
		createReadyNode(t, client, "node1")
		createReadyPod(t, client, "web", "node1", "192.0.2.7")
		eventually.Done(t, "a ready endpoint", func(ctx context.Context) (bool, error) {
			slices, err := client.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
			if err != nil || len(slices.Items) != 1 || len(slices.Items[0].Endpoints) != 1 {
				return false, err
			}
			found := slices.Items[0]
			return found.Endpoints[0].Addresses[0] == "192.0.2.7" && *found.Endpoints[0].Conditions.Ready && *found.Ports[0].Port == 8080, nil
		})
	})
	t.Run("eviction by taints", func(t *testing.T) {
		taint := []byte(`{"spec":{"taints":[{"key":"k","effect":"NoExecute"}]}}`)
		if _, err := client.CoreV1().Nodes().Patch(t.Context(), "node1", types.MergePatchType, taint, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually.Done(t, "the Pod is evicted", func(ctx context.Context) (bool, error) {
			pod, err := client.CoreV1().Pods("default").Get(ctx, "web", metav1.GetOptions{})
			return err == nil && pod.DeletionTimestamp != nil, err
		})
	})
	t.Run("protection of claims", func(t *testing.T) {
		claims := client.CoreV1().PersistentVolumeClaims("default")
		_, err := claims.Create(t.Context(), &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "data"},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := claims.Delete(t.Context(), "data", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually.Done(t, "the claim is gone", func(ctx context.Context) (bool, error) {
			_, err := claims.Get(ctx, "data", metav1.GetOptions{})
			return apierrors.IsNotFound(err), nil
		})
	})
	t.Run("certificates", func(t *testing.T) {
		requests := client.CertificatesV1().CertificateSigningRequests()
		request, err := requests.Create(t.Context(), &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "jane"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request:    certificateRequest(t, "jane"),
				SignerName: certificatesv1.KubeAPIServerClientSignerName,
				Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
		if _, err := requests.UpdateApproval(t.Context(), "jane", request, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually.Done(t, "a certificate", func(ctx context.Context) (bool, error) {
			request, err := requests.Get(ctx, "jane", metav1.GetOptions{})
			return err == nil && len(request.Status.Certificate) > 0, err
		})
	})
}

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
	eventually.True(t, "the controllers pause", func() bool {
		return strings.Contains(server.log.String(), `"Paused, because another process leads"`)
	})
	createService(t, client, "second")
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
}

// With both flags, one process creates the Pods of a Deployment and binds them to a node.
func TestControllers_WithSchedulerAndControllerManagerRunADeployment(t *testing.T) {
	t.Parallel()
	server := startServer(t, t.TempDir(), "--with-scheduler", "--with-controller-manager")
	client := kubernetes.NewForConfigOrDie(server.config(t))
	createReadyNode(t, client, "node1")
	labels := map[string]string{"app": "web"}
	_, err := client.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)),
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
	eventually.Done(t, "two bound Pods", func(ctx context.Context) (bool, error) {
		pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil || len(pods.Items) != 2 {
			return false, err
		}
		return pods.Items[0].Spec.NodeName == "node1" && pods.Items[1].Spec.NodeName == "node1", nil
	})
	if status := server.stop(t); status != 0 {
		t.Errorf("exit status is %d", status)
	}
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
	slices, err := client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + service})
	if err != nil {
		t.Fatal(err)
	}
	return len(slices.Items)
}

func awaitSlice(t *testing.T, client kubernetes.Interface, service string) {
	t.Helper()
	eventually.True(t, "an EndpointSlice of "+service, func() bool { return slicesOf(t, client, service) > 0 })
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
	eventually.Done(t, "the ServiceAccount default of "+namespace, func(ctx context.Context) (bool, error) {
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

func certificateRequest(t *testing.T, user string) []byte {
	t.Helper()
	data, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	key, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(nil, &x509.CertificateRequest{Subject: pkix.Name{CommonName: user}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}
