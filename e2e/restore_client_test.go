package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"

	"byre/e2e/manifests"
	"byre/e2e/servers"
)

// restoreClient talks to a server whose address changes.
type restoreClient struct {
	dynamic   dynamic.Interface
	mapper    meta.RESTMapper
	resources []schema.GroupVersionResource
	address   atomic.Value
}

func newRestoreClient(t *testing.T, s *servers.Server) *restoreClient {
	t.Helper()
	c := &restoreClient{}
	c.address.Store(strings.TrimPrefix(s.URL, "https://"))
	config := s.Config(servers.AdminToken)
	config.QPS, config.Burst = -1, -1
	config.WarningHandler = rest.NoWarnings{}
	config.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, c.address.Load().(string))
	}
	var err error
	if c.dynamic, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := restmapper.GetAPIGroupResources(d)
	if err != nil {
		t.Fatal(err)
	}
	c.mapper = restmapper.NewDiscoveryRESTMapper(groups)
	lists, err := d.ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "watch"}}, lists) {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, resource := range list.APIResources {
			c.resources = append(c.resources, gv.WithResource(resource.Name))
		}
	}
	return c
}

// fill makes the objects of the manifests, of nearly all kinds, in as many namespaces as
// give n objects.
func (c *restoreClient) fill(t *testing.T, n int) (made int) {
	t.Helper()
	for i := 0; made < n; i++ {
		objects, err := manifests.Read(fmt.Sprintf("restore-%d", i))
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range objects {
			if c.create(t, object, i) {
				made++
			}
		}
	}
	return made
}

// create makes an object, unless it is there already or would cost every other request.
func (c *restoreClient) create(t *testing.T, object *unstructured.Unstructured, i int) bool {
	t.Helper()
	kind := object.GetKind()
	if strings.HasSuffix(kind, "WebhookConfiguration") || strings.HasPrefix(kind, "ValidatingAdmissionPolicy") ||
		kind == "ResourceQuota" || kind == "LimitRange" || i > 0 && (kind == "FlowSchema" || kind == "PriorityLevelConfiguration") {
		return false
	}
	gvk := object.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		t.Fatal(err)
	}
	var client dynamic.ResourceInterface = c.dynamic.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		client = c.dynamic.Resource(mapping.Resource).Namespace(object.GetNamespace())
	}
	_, err = client.Create(t.Context(), object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return false
	}
	if err != nil {
		t.Fatalf("%s %s: %v", kind, object.GetName(), err)
	}
	return true
}

// dump lists every object of every resource.
func (c *restoreClient) dump(t *testing.T) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for _, resource := range c.resources {
		for _, object := range c.list(t, resource) {
			all[objectKey(resource, &object)] = object.Object
		}
	}
	return all
}

func (c *restoreClient) list(t *testing.T, resource schema.GroupVersionResource) []unstructured.Unstructured {
	t.Helper()
	list, err := c.dynamic.Resource(resource).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatalf("list %s: %v", resource, err)
	}
	return list.Items
}

func objectKey(resource schema.GroupVersionResource, object metav1.Object) string {
	return fmt.Sprintf("%s %s/%s", resource.Resource, object.GetNamespace(), object.GetName())
}

// change creates, updates and deletes some objects.
func (c *restoreClient) change(t *testing.T) {
	t.Helper()
	configMaps := c.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"})
	for _, object := range c.list(t, schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}) {
		object.SetLabels(map[string]string{"changed": strconv.Itoa(rand.Int())})
		if _, err := configMaps.Namespace(object.GetNamespace()).Update(t.Context(), &object, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		object = unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"generateName": "later-"}}}
		if _, err := configMaps.Namespace("default").Create(t.Context(), &object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	secrets := schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	for _, object := range c.list(t, secrets) {
		if rand.IntN(2) == 0 {
			continue
		}
		if err := c.dynamic.Resource(secrets).Namespace(object.GetNamespace()).Delete(t.Context(), object.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// inform runs an informer of each resource until the test ends, and returns their stores
// once they are synced.
func (c *restoreClient) inform(t *testing.T) map[schema.GroupVersionResource]cache.Store {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	factory := dynamicinformer.NewDynamicSharedInformerFactory(c.dynamic, 0)
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	stores := map[schema.GroupVersionResource]cache.Store{}
	for _, resource := range c.resources {
		stores[resource] = factory.ForResource(resource).Informer().GetStore()
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return stores
}
