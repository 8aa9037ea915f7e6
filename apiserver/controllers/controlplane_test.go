package controllers_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"byre/apiserver/controllers"
	"byre/sqlstore/storetest"
)

// TestServerID_IsUpstreams compares the server's identity with the one that upstream
// derives from the same host name (kubernetes/test/e2e/apimachinery/apiserver_identity.go).
func TestServerID_IsUpstreams(t *testing.T) {
	got, err := controllers.ServerID("vm", "6443")
	if want := "apiserver-wlv32tlttr4jl3gtroqexyxapa"; got != want || err != nil {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	second, err := controllers.ServerID("vm", "6444")
	if second == got || err != nil {
		t.Errorf("a second server of the host is %s, %v", second, err)
	}
}

func lease(name string, renewed time.Time) *coordinationv1.Lease {
	at := metav1.NewMicroTime(renewed)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-system",
			Labels: map[string]string{"apiserver.kubernetes.io/identity": "kube-apiserver"}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new(name + "_1"), LeaseDurationSeconds: ptr.To[int32](3600),
			RenewTime: &at},
	}
}

// TestIdentityLease_LivesWithTheServer: a server's Lease exists while it runs, and has its address. Expired Leases of
// other servers are deleted, and no other Leases.
func TestIdentityLease_LivesWithTheServer(t *testing.T) {
	client := fake.NewClientset(lease("apiserver-dead", time.Now().Add(-2*time.Hour)),
		lease("apiserver-alive", time.Now()),
		// This server's last run has left this Lease.
		lease("apiserver-this", time.Now().Add(-time.Minute)))
	resources := serverstorage.NewResourceConfig()
	resources.EnableVersions(coordinationv1.SchemeGroupVersion, corev1.SchemeGroupVersion)
	p := controllers.NewControlPlane(controllers.ControlPlaneConfig{
		ServerID: "apiserver-this", Hostname: "this", PeerAddress: "192.0.2.1:6443",
		Client:                  client,
		Informers:               informers.NewSharedInformerFactory(client, 0),
		APIResourceConfigSource: resources,
		FeatureGate:             utilfeature.DefaultFeatureGate,
		LeaderElection:          controllers.DefaultLeaderElectionTimers(),
		Logger:                  klog.Background(),
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	names := func() string {
		list, err := client.CoordinationV1().Leases("kube-system").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Error(err)
			return ""
		}
		var all []string
		for _, l := range list.Items {
			if l.Name != "apiserver-this" || strings.HasPrefix(*l.Spec.HolderIdentity, "apiserver-this_") &&
				len(*l.Spec.HolderIdentity) > 20 &&
				l.Annotations[corev1.AnnotationPeerAdvertiseAddress] == "192.0.2.1:6443" {
				all = append(all, l.Name)
			}
		}
		return strings.Join(all, " ")
	}
	await := func(want string) {
		t.Helper()
		storetest.Eventually(t, "Leases "+want, func() bool { return names() == want })
	}
	await("apiserver-alive apiserver-this")
	storetest.EventuallyDone(t, "the checks pass", func(context.Context) (bool, error) {
		var err error
		for _, check := range p.Checks() {
			err = errors.Join(err, check.Check(nil))
		}
		return err == nil, err
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := names(); got != "apiserver-alive" {
		t.Errorf("after the stop Leases are %q", got)
	}
}

// TestControlPlane_WritesNothingToDisabledAPIs: nothing is written to an API that is off.
func TestControlPlane_WritesNothingToDisabledAPIs(t *testing.T) {
	p := controllers.NewControlPlane(
		controllers.ControlPlaneConfig{APIResourceConfigSource: serverstorage.NewResourceConfig(),
			FeatureGate: utilfeature.DefaultFeatureGate, Logger: klog.Background()})
	if checks := p.Checks(); len(checks) != 0 {
		t.Errorf("%d controllers run", len(checks))
	}
}
