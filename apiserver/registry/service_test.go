package registry_test

import (
	"net"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"byre/sqlstore/storetest"
)

// TestBootstrap_SecondStartTakesNoRevision: with a real store, too, a second start takes no
// revision.
func TestBootstrap_SecondStartTakesNoRevision(t *testing.T) {
	t.Parallel()
	s := start(t)
	before, err := s.driver.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.bootstrap(t)
	after, err := s.driver.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if before.Revision == 0 || after.Revision != before.Revision {
		t.Errorf("revision %d after the first start, %d after the second", before.Revision, after.Revision)
	}
	kubernetes, err := s.client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || kubernetes.Spec.ClusterIP != "10.9.0.1" {
		t.Errorf("kubernetes Service %+v, %v", kubernetes, err)
	}
}

func service(name string, kind corev1.ServiceType, nodePort int32) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Type:  kind,
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, NodePort: nodePort, TargetPort: intstr.FromInt32(8080)}},
		},
	}
}

// TestService_AllocatesAndReleases: a Service gets an address and a port of the ranges,
// which no other Service gets until it is deleted.
func TestService_AllocatesAndReleases(t *testing.T) {
	t.Parallel()
	s := start(t)
	services := s.client.CoreV1().Services("default")
	ctx := t.Context()

	made, err := services.Create(ctx, service("a", corev1.ServiceTypeNodePort, 0), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ip, port := made.Spec.ClusterIP, made.Spec.Ports[0].NodePort
	if !clusterIPs.Contains(net.ParseIP(ip)) || !nodePorts.Contains(int(port)) {
		t.Errorf("got %s and %d", ip, port)
	}
	if _, err := s.client.NetworkingV1().IPAddresses().Get(ctx, ip, metav1.GetOptions{}); err != nil {
		t.Errorf("IPAddress: %v", err)
	}
	if _, err := services.Create(ctx, service("b", corev1.ServiceTypeNodePort, port), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a taken node port: %v", err)
	}
	taken := service("c", corev1.ServiceTypeClusterIP, 0)
	taken.Spec.ClusterIP = ip
	if _, err := services.Create(ctx, taken, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a taken address: %v", err)
	}

	if err := services.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "the address is given back", func() bool {
		_, err := s.client.NetworkingV1().IPAddresses().Get(ctx, ip, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	again := service("b", corev1.ServiceTypeNodePort, port)
	again.Spec.ClusterIP = ip
	storetest.Eventually(t, "both are free again", func() bool {
		_, err := services.Create(ctx, again, metav1.CreateOptions{})
		return err == nil
	})
}

// TestService_DryRunAllocatesNothing: a dry run allocates no address and no port.
func TestService_DryRunAllocatesNothing(t *testing.T) {
	t.Parallel()
	s := start(t)
	before, err := s.driver.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	made, err := s.client.CoreV1().Services("default").Create(t.Context(), service("a", corev1.ServiceTypeNodePort, 30005),
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil || made.Spec.Ports[0].NodePort != 30005 {
		t.Fatalf("%+v, %v", made, err)
	}
	after, err := s.driver.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if after.Revision != before.Revision {
		t.Errorf("revision went from %d to %d", before.Revision, after.Revision)
	}
	if _, err := s.client.CoreV1().Services("default").Create(t.Context(), service("a", corev1.ServiceTypeNodePort, 30005), metav1.CreateOptions{}); err != nil {
		t.Errorf("for real: %v", err)
	}
}

// TestService_ChangeOfTypeReleasesThePort: a change to a type without a node port releases
// the port.
func TestService_ChangeOfTypeReleasesThePort(t *testing.T) {
	t.Parallel()
	s := start(t)
	services := s.client.CoreV1().Services("default")
	made, err := services.Create(t.Context(), service("a", corev1.ServiceTypeNodePort, 30006), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Spec.Type = corev1.ServiceTypeClusterIP
	made.Spec.Ports[0].NodePort = 0
	if _, err := services.Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := services.Create(t.Context(), service("b", corev1.ServiceTypeNodePort, 30006), metav1.CreateOptions{}); err != nil {
		t.Errorf("the port isn't free: %v", err)
	}
}
