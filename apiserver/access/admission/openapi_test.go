package admission

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/discovery"
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

// newOpenAPIClient returns a client of a server that has the OpenAPI index of the group "g".
func newOpenAPIClient(t testing.TB) discovery.DiscoveryInterfaces {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/openapi/v3", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{
			"apis/g/v1": {ServerRelativeURL: "/openapi/v3/apis/g/v1?hash=1"},
		}})
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestOpenAPIClient_WaitsForTheServer: the index is asked for once the informer has synced, and not
// after the server has stopped.
func TestOpenAPIClient_WaitsForTheServer(t *testing.T) {
	stop := make(chan struct{})
	polls, hasSynced := 0, false
	synced := func() bool {
		polls++
		hasSynced = polls > 2
		return hasSynced
	}
	client := openAPIClientset{fakeClient{fake.NewClientset(), newOpenAPIClient(t)}, synced, stop}.Discovery().OpenAPIV3()
	paths, err := client.Paths()
	if err != nil || len(paths) != 1 || paths["apis/g/v1"] == nil || !hasSynced {
		t.Errorf("got %v, %v, after %d polls", paths, err, polls)
	}
	close(stop)
	polls = -100
	if paths, err := client.Paths(); err == nil {
		t.Errorf("the server has stopped: got %v", paths)
	}
}
