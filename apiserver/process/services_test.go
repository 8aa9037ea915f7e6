package process

import (
	"net/url"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"byre/apiserver/apitest"
)

// slicesOf are EndpointSlices by Service.
type slicesOf map[string][]*discoveryv1.EndpointSlice

func (s slicesOf) GetEndpointSlices(_, service string) ([]*discoveryv1.EndpointSlice, error) {
	return s[service], nil
}

// TestResolver_PrefersEndpoints: a Service resolves to one of its endpoints, by the name of
// the port; without endpoints it resolves to its cluster IP or its external name.
func TestResolver_PrefersEndpoints(t *testing.T) {
	t.Parallel()
	services := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	slices := slicesOf{}
	add := func(name string, spec corev1.ServiceSpec, at ...*discoveryv1.EndpointSlice) {
		if err := services.Add(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name},
			Spec: spec}); err != nil {
			t.Fatal(err)
		}
		slices[name] = at
	}
	slice := func(address, portName string, port int32, ready bool) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address},
				Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
			Ports: []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
		}
	}
	ports := []corev1.ServicePort{{Name: "metrics", Port: 9090}, {Name: "https", Port: 443}}
	clusterIP := corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.0.0.7", Ports: ports}
	unnamed := clusterIP
	unnamed.Ports = []corev1.ServicePort{{Port: 443}}
	headless := clusterIP
	headless.ClusterIP = corev1.ClusterIPNone
	nodePort := clusterIP
	nodePort.Type = corev1.ServiceTypeNodePort
	add("endpoints", clusterIP, slice("10.1.0.1", "metrics", 9090, true), slice("10.1.0.2", "https", 8443, true))
	add("unnamed", unnamed, slice("10.1.0.1", "", 6443, true))
	add("headless", headless, slice("10.1.0.1", "https", 8443, true))
	add("bare", clusterIP)
	add("barehead", headless)
	add("nodeport", nodePort)
	add("unready", clusterIP, slice("10.1.0.1", "https", 8443, false))
	add("external", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "api.example.com"})
	for _, test := range []struct {
		service          string
		port             int32
		endpoints, plain string // hosts, or errors
	}{
		{"endpoints", 443, "10.1.0.2:8443", "10.0.0.7:443"},
		{"endpoints", 9090, "10.1.0.1:9090", "10.0.0.7:9090"},
		{"endpoints", 80, `no service port 80 found for service "endpoints"`,
			`no service port 80 found for service "endpoints"`},
		{"unnamed", 443, "10.1.0.1:6443", "10.0.0.7:443"},
		{"headless", 443, "10.1.0.1:8443", `cannot route to service with ClusterIP "None"`},
		{"bare", 443, "10.0.0.7:443", "10.0.0.7:443"},
		{"barehead", 443, `cannot route to service with ClusterIP "None"`, `cannot route to service with ClusterIP "None"`},
		{"nodeport", 443, "10.0.0.7:443", "10.0.0.7:443"},
		{"unready", 443, `no endpoints available for service "unready"`, "10.0.0.7:443"},
		{"external", 8443, "api.example.com:8443", "api.example.com:8443"},
		{"none", 443, `service "none" not found`, `service "none" not found`},
	} {
		for toEndpoints, want := range map[bool]string{true: test.endpoints, false: test.plain} {
			r := ServiceResolver{Services: listers.NewServiceLister(services), Slices: slices, ToEndpoints: toEndpoints}
			got := ""
			if at, err := r.ResolveEndpoint("team-a", test.service, test.port); err != nil {
				got = err.Error()
			} else {
				got = at.Host
			}
			if got != want {
				t.Errorf("%s:%d by endpoints %v: %s, want %s", test.service, test.port, toEndpoints, got, want)
			}
		}
	}
}

// TestResolver_ReadsTheStore: the resolver finds Services and their EndpointSlices in the
// store.
func TestResolver_ReadsTheStore(t *testing.T) {
	t.Parallel()
	name, port := "https", int32(9443)
	stores := apitest.NewStores(t)
	stores.Create(t, corev1.Resource("services"), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.0.0.7",
			Ports: []corev1.ServicePort{{Name: name, Port: 8443}}},
	})
	for service, address := range map[string]string{"s": "10.1.0.1", "other": "10.1.0.9"} {
		stores.Create(t, discoveryv1.Resource("endpointslices"), &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: service + "-1",
				Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
			Ports:     []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
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
		at, err := NewServiceResolver(stores.Reader, test.toEndpoints, self).ResolveEndpoint(test.namespace, test.name,
			test.port)
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
