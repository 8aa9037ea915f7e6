package controllers

import (
	"crypto/x509"
	"net"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
)

// TestServingApprover_KeepsTheServersNames: the Node byre-1 is on the host of the server, which has the addresses
// 192.0.2.1 and 192.0.2.100.
func TestServingApprover_KeepsTheServersNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		node, asked string
		isAllowed   bool
	}{
		{"liar", "192.0.2.1", false},
		{"liar", "192.0.2.2", false},
		{"liar", "192.0.2.100", false},
		{"liar", "2001:db8::1", false},
		{"liar", "192.0.2.9", true},
		{"liar", "liar", true},
		{"api.example.com", "api.example.com", false},
		{"API.Example.com", "API.Example.com", false},
		{"*.example.com", "*.example.com", false},
		{"*.default.svc", "*.default.svc", false},
		{"Kubernetes.default.svc", "Kubernetes.default.svc", false},
		{"byre-1", "192.0.2.1", true},
		{"byre-1", "192.0.2.2", true},
		{"byre-1", "192.0.2.100", false},
		{"byre-1", "byre-1", true},
	} {
		approver := &servingApprover{
			self: newClusterOf(c.node, c.asked),
			host: "byre-1",
			hosts: Hosts{
				Own: []string{"192.0.2.1", "Byre-1"},
				All: []string{"192.0.2.1", "Byre-1", "192.0.2.100", "2001:0DB8::1", "API.example.com."},
			},
		}
		expectRefused(t, approver, c.node, c.asked, !c.isAllowed)
	}
}

// TestServingApprover_KnowsTheHostsOfReplicas: byre-1 leads, and another server with an identity Lease is on byre-2.
func TestServingApprover_KnowsTheHostsOfReplicas(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, node, asked string
		unseen            time.Duration
		isAllowed         bool
	}{
		{"endpoint", "byre-2", "192.0.2.2", 30 * time.Second, true},
		{"name", "byre-2", "byre-2", 30 * time.Second, true},
		{"other node", "node-3", "192.0.2.2", 30 * time.Second, false},
		{"leader's address", "byre-2", "192.0.2.1", 30 * time.Second, false},
		{"external hostname", "byre-2", "192.0.2.100", 30 * time.Second, false},
		{"expired", "byre-2", "192.0.2.2", 2 * time.Hour, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			renewed := metav1.NewMicroTime(time.Now().Add(-c.unseen))
			approver := &servingApprover{
				self: newClusterOf(c.node, c.asked, &coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{Name: "apiserver-2", Namespace: "kube-system", Labels: map[string]string{
						"apiserver.kubernetes.io/identity": "kube-apiserver", corev1.LabelHostname: "Byre-2",
					}},
					Spec: coordinationv1.LeaseSpec{HolderIdentity: new("apiserver-2_1"), LeaseDurationSeconds: new(int32(3600)), RenewTime: &renewed},
				}),
				host:  "byre-1",
				hosts: Hosts{Own: []string{"192.0.2.1"}, All: []string{"192.0.2.1", "192.0.2.100", "byre-2"}},
			}
			expectRefused(t, approver, c.node, c.asked, !c.isAllowed)
		})
	}
}

// newClusterOf returns a cluster whose Service kubernetes has the endpoint 192.0.2.2, and in which one Node says that
// it has an address.
func newClusterOf(node, address string, more ...runtime.Object) *fake.Clientset {
	return fake.NewClientset(append(more,
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default"}},
		&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
			Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.2"}}},
		},
		&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: node},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Address: address}}},
		},
	)...)
}

func expectRefused(t *testing.T, approver *servingApprover, node, asked string, want bool) {
	t.Helper()
	request := &x509.CertificateRequest{DNSNames: []string{asked}}
	if ip := net.ParseIP(asked); ip != nil {
		request = &x509.CertificateRequest{IPAddresses: []net.IP{ip}}
	}
	if refused, err := approver.refuse(t.Context(), node, request); err != nil || (refused != "") != want {
		t.Errorf("%s asks for %s: %q, %v; refused should be %v", node, asked, refused, err, want)
	}
}
