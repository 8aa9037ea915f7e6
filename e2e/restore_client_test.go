package e2e

import (
	"context"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"byre/e2e/cluster"
	"byre/e2e/servers"
)

// restoreClient is a client of a server whose address changes when it is started again.
type restoreClient struct {
	*cluster.Cluster
	address atomic.Value
}

func newRestoreClient(t *testing.T, s *servers.Server) *restoreClient {
	t.Helper()
	c := &restoreClient{}
	c.address.Store(strings.TrimPrefix(s.URL, "https://"))
	config := s.Config(servers.AdminToken)
	config.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, c.address.Load().(string))
	}
	c.Cluster = cluster.Connect(t, config)
	return c
}

func (c *restoreClient) list(t *testing.T, resource schema.GroupVersionResource) []unstructured.Unstructured {
	t.Helper()
	list, err := c.Dynamic.Resource(resource).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatalf("list %s: %v", resource, err)
	}
	return list.Items
}

// change creates, updates and deletes some objects.
func (c *restoreClient) change(t *testing.T) {
	t.Helper()
	configMaps := c.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"})
	for _, object := range c.list(t, schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}) {
		object.SetLabels(map[string]string{"changed": strconv.Itoa(rand.Int())})
		if _, err := configMaps.Namespace(object.GetNamespace()).Update(t.Context(), &object,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		object = unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"generateName": "later-"}}}
		if _, err := configMaps.Namespace("default").Create(t.Context(), &object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	secrets := schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	for i, object := range c.list(t, secrets) {
		if i%2 == 0 {
			continue
		}
		if err := c.Dynamic.Resource(secrets).Namespace(object.GetNamespace()).Delete(t.Context(), object.GetName(),
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// inform runs an informer of each resource until the test ends, and returns their stores
// once they are synced.
func (c *restoreClient) inform(t *testing.T) map[schema.GroupVersionResource]cache.Store {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	factory := dynamicinformer.NewDynamicSharedInformerFactory(c.Dynamic, 0)
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	stores := map[schema.GroupVersionResource]cache.Store{}
	for _, resource := range c.Resources(t) {
		stores[resource] = factory.ForResource(resource).Informer().GetStore()
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return stores
}
