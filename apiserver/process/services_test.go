package process

import (
	"net/url"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"byre/apiserver/apitest"
)

// TestResolver_ReadsTheStore: the resolver finds Services and their EndpointSlices in the
// store.
func TestResolver_ReadsTheStore(t *testing.T) {
	t.Parallel()
	name, port := "https", int32(9443)
	stores := apitest.NewStores(t)
	stores.Create(t, corev1.Resource("services"), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.0.0.7", Ports: []corev1.ServicePort{{Name: name, Port: 8443}}},
	})
	for service, address := range map[string]string{"s": "10.1.0.1", "other": "10.1.0.9"} {
		stores.Create(t, discoveryv1.Resource("endpointslices"), &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{address}}},
			Ports:      []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		})
	}
	self := &url.URL{Scheme: "https", Host: "127.0.0.1:6443"}
	for _, test := range []struct {
		namespace, name string
		port            int32
		toEndpoints     bool
		want            string
	}{
		{"n", "s", 8443, false, "10.0.0.7:8443"},
		{"n", "s", 8443, true, "10.1.0.1:9443"},
		{"n", "s", 443, false, ""},
		{"n", "none", 443, true, ""},
		{"default", "kubernetes", 443, true, "127.0.0.1:6443"},
		{"default", "kubernetes", 80, true, ""},
		{"n", "kubernetes", 443, true, ""},
	} {
		at, err := NewServiceResolver(stores.Reader, test.toEndpoints, self).ResolveEndpoint(test.namespace, test.name, test.port)
		switch {
		case test.want == "" && err == nil:
			t.Errorf("%+v was found at %s", test, at)
		case test.want != "" && (err != nil || at.Scheme != "https" || at.Host != test.want):
			t.Errorf("%+v: %v, %v", test, at, err)
		}
	}
	if _, err := NewServiceResolver(stores.Reader, true, nil).ResolveEndpoint("default", "kubernetes", 443); err == nil {
		t.Error("a server that does not know where it listens was found")
	}
}
