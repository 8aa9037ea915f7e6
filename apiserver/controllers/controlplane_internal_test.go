package controllers

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
)

// TestHosts_StayReservedWhileAServerIsStopped: what a server is called is known while it runs, follows its
// certificates, stays known after it has stopped, and ends a year later.
func TestHosts_StayReservedWhileAServerIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: HostsConfigMap, Namespace: "kube-system"},
			Data: map[string]string{"apiserver-2": `{"hostname":"byre-2","hosts":["192.0.2.2"],"until":"` +
				time.Now().Add(24*time.Hour).UTC().Format(time.RFC3339) + `"}`},
		})
		hosts := []string{"192.0.2.1"}
		p := NewControlPlane(ControlPlaneConfig{
			ServerID: "apiserver-1", Hostname: "byre-1", Client: client, Hosts: func() ([]string, error) { return hosts, nil },
			APIResourceConfigSource: serverstorage.NewResourceConfig(), FeatureGate: utilfeature.DefaultFeatureGate,
			Logger: klog.Background(),
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx) }()
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			published, err := PublishedHosts(t.Context(), client)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, server := range published {
				got = append(got, server.Hosts...)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Fatalf("%q, want %q", got, want)
			}
		}
		expect("192.0.2.1", "192.0.2.2")
		hosts = []string{"192.0.2.1", "api.example.com"}
		time.Sleep(2 * hostsInterval)
		expect("192.0.2.1", "192.0.2.2", "api.example.com")
		time.Sleep(25 * time.Hour)
		expect("192.0.2.1", "api.example.com")
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		expect("192.0.2.1", "api.example.com")
	})
}

// TestHosts_AreCreatedByTheFirstServer: there is no ConfigMap before.
func TestHosts_AreCreatedByTheFirstServer(t *testing.T) {
	client := fake.NewClientset()
	for _, id := range []string{"apiserver-1", "apiserver-2"} {
		p := NewControlPlane(ControlPlaneConfig{
			ServerID: id, Hostname: id, Client: client, Hosts: func() ([]string, error) { return []string{id}, nil },
			APIResourceConfigSource: serverstorage.NewResourceConfig(), FeatureGate: utilfeature.DefaultFeatureGate,
		})
		if err := p.publishHosts(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	published, err := PublishedHosts(t.Context(), client)
	if err != nil || len(published) != 2 || published["apiserver-2"].Hostname != "apiserver-2" {
		t.Errorf("%v, %v", published, err)
	}
}
