package admission

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/kube-openapi/pkg/handler3"
)

// fakeClient is a fake clientset with a discovery client that makes requests.
type fakeClient struct {
	*fake.Clientset
	discovery discovery.DiscoveryInterfaces
}

func (c fakeClient) Discovery() discovery.DiscoveryInterfaces { return c.discovery }

// openAPIServer serves discovery and OpenAPI v3 of the group "g" and counts the
// requests for the OpenAPI index.
type openAPIServer struct {
	*httptest.Server
	indexRequests atomic.Int32
}

func newOpenAPIServer(t testing.TB) *openAPIServer {
	t.Helper()
	s := &openAPIServer{}
	mux := http.NewServeMux()
	answer := func(path string, value any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			if path == "/openapi/v3" {
				s.indexRequests.Add(1)
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(value)
		})
	}
	answer("/apis", metav1.APIGroupList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"},
		Groups:   []metav1.APIGroup{{Name: "g", Versions: []metav1.GroupVersionForDiscovery{{GroupVersion: "g/v1", Version: "v1"}}}},
	})
	answer("/openapi/v3", handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{
		"apis/g/v1": {ServerRelativeURL: "/openapi/v3/apis/g/v1?hash=1"},
	}})
	answer("/openapi/v3/apis/g/v1", "the document")
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func (s *openAPIServer) client(t testing.TB) discovery.DiscoveryInterfaces {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestLazyOpenAPI_ServesThePolicyPlugin: the index is requested once there is a policy, and
// not before.
func TestLazyOpenAPI_ServesThePolicyPlugin(t *testing.T) {
	served := newOpenAPIServer(t)
	client := fakeClient{fake.NewClientset(), served.client(t)}
	factory := informers.NewSharedInformerFactory(client, 0)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer factory.Shutdown()
	defer cancel()
	lazy := newLazyOpenAPIClientset(client, factory, ctx.Done()).Discovery().OpenAPIV3()
	informer := factory.Admissionregistration().V1().MutatingAdmissionPolicies().Informer()
	factory.Start(ctx.Done())

	paths, err := lazy.Paths()
	if err != nil {
		t.Fatal(err)
	}
	document, ok := paths["apis/g/v1"]
	if !ok || len(paths) != 2 {
		t.Fatalf("got %v", paths)
	}
	if n := served.indexRequests.Load(); n != 0 {
		t.Errorf("the index was requested %d times though there is no policy", n)
	}
	before := document.ServerRelativeURL()
	if data, err := document.Schema("application/json"); err != nil || string(data) != "\"the document\"\n" {
		t.Errorf("got %s, %v", data, err)
	}

	policy := &admissionv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	if err := informer.GetStore().Add(policy); err != nil {
		t.Fatal(err)
	}
	served.indexRequests.Store(0)
	if paths, err = lazy.Paths(); err != nil {
		t.Fatal(err)
	}
	if served.indexRequests.Load() == 0 || paths["apis/g/v1"].ServerRelativeURL() == before {
		t.Error("with a policy, Paths did not return the index of the server")
	}
}
