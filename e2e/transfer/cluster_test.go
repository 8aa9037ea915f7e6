package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"byre/e2e/manifests"
	"byre/e2e/servers"
	"byre/sqlstore/eventually"
)

// cluster talks to a server as its administrator.
type cluster struct {
	*servers.Server
	dynamic   dynamic.Interface
	discovery *discovery.DiscoveryClient
}

func connect(t *testing.T, s *servers.Server) *cluster {
	t.Helper()
	c := &cluster{Server: s}
	var err error
	config := s.Config(servers.AdminToken)
	config.WarningHandler = rest.NoWarnings{}
	if c.dynamic, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if c.discovery, err = discovery.NewDiscoveryClientForConfig(config); err != nil {
		t.Fatal(err)
	}
	return c
}

// definitions and their instances, of which Kubernetes knows no type, and what the
// manifests have none of.
const definitions = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: sites.example.com}
spec:
  group: example.com
  names: {plural: sites, singular: site, kind: Site, listKind: SiteList}
  scope: Cluster
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.metrics.example.com}
spec:
  group: metrics.example.com
  version: v1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {namespace: default, name: metrics}
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: more}
spec: {cidrs: [10.97.0.0/24]}
`

const instances = `
apiVersion: example.com/v1
kind: Widget
metadata: {name: widget, namespace: ${NS}, finalizers: [example.com/kept]}
spec: {text: "<&> \u2028", number: 1.50, big: 12345678901234567890, nothing: null, list: [], map: {}}
---
apiVersion: example.com/v1
kind: Site
metadata: {name: "site-${NS}"}
spec: {place: here}
---
apiVersion: v1
kind: Service
metadata: {name: outside, namespace: ${NS}}
spec: {type: NodePort, ports: [{port: 80}]}
`

// single are kinds of which one a namespace is enough: each costs every request, or
// refuses other objects.
var single = []string{
	"Namespace", "ResourceQuota", "LimitRange", "FlowSchema", "PriorityLevelConfiguration", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration",
	"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "Service", "Endpoints",
}

// fill makes about n objects of all kinds, and returns how many it made.
func (c *cluster) fill(t *testing.T, n int) int {
	t.Helper()
	defined, err := manifests.Parse(definitions)
	if err != nil {
		t.Fatal(err)
	}
	made := c.create(t, 1, defined...)
	eventually.Succeeds(t, "the definitions are in discovery", func() error {
		list, err := c.discovery.ServerResourcesForGroupVersion("example.com/v1")
		if err == nil && len(list.APIResources) < 2 {
			err = errors.New("one of them is not")
		}
		return err
	})
	var all, last []*unstructured.Unstructured
	for _, namespace := range []string{"shop", "office"} {
		builtIn, err := manifests.Read(namespace)
		if err != nil {
			t.Fatal(err)
		}
		custom, err := manifests.Parse(strings.ReplaceAll(instances, "${NS}", namespace))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range append(builtIn, custom...) {
			switch o.GetKind() {
			case "Namespace":
				made += c.create(t, 1, o)
			case "ResourceQuota", "LimitRange": // would refuse the others
				last = append(last, o)
			default:
				all = append(all, o)
			}
		}
	}
	first := all
	for copies := 1; made+len(all)+len(last) < n; copies++ {
		for _, o := range first {
			if !slices.Contains(single, o.GetKind()) {
				o = o.DeepCopy()
				o.SetName(strings.Replace(o.GetName(), ".", "-"+strconv.Itoa(copies)+".", 1))
				if !strings.Contains(o.GetName(), ".") {
					o.SetName(o.GetName() + "-" + strconv.Itoa(copies))
				}
				all = append(all, o)
			}
		}
	}
	made += c.create(t, 1, first...) // in the order in which they need each other
	made += c.create(t, 8, all[len(first):]...)
	return made + c.create(t, 1, last...)
}

// create creates objects, some at a time. Discovery may be a moment behind a definition.
func (c *cluster) create(t *testing.T, workers int, objects ...*unstructured.Unstructured) int {
	t.Helper()
	groups, err := restmapper.GetAPIGroupResources(c.discovery)
	if err != nil && len(groups) == 0 {
		t.Fatal(err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	queue := make(chan *unstructured.Unstructured)
	var wait sync.WaitGroup
	for range workers {
		wait.Go(func() {
			for o := range queue {
				if err := c.createOne(t.Context(), mapper, o); err != nil {
					t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
				}
			}
		})
	}
	for _, o := range objects {
		queue <- o
	}
	close(queue)
	wait.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return len(objects)
}

func (c *cluster) createOne(ctx context.Context, mapper meta.RESTMapper, o *unstructured.Unstructured) error {
	gvk := o.GroupVersionKind()
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return err
	}
	resource := dynamic.ResourceInterface(c.dynamic.Resource(mapping.Resource))
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		resource = c.dynamic.Resource(mapping.Resource).Namespace(o.GetNamespace())
	}
	ctx, cancel := context.WithTimeout(ctx, eventually.Patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err = resource.Create(ctx, o, metav1.CreateOptions{FieldManager: "fill"})
		if !apierrors.IsForbidden(err) {
			return err
		}
		// Admission may not have seen yet what the object needs: its namespace, its class.
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// dump is everything that a server shows, by its path.
func (c *cluster) dump(t *testing.T) map[string]*unstructured.Unstructured {
	t.Helper()
	lists, err := c.discovery.ServerPreferredResources()
	var partly *discovery.ErrGroupDiscoveryFailed
	if err != nil && !errors.As(err, &partly) { // the APIService leads nowhere
		t.Fatal(err)
	}
	all := map[string]*unstructured.Unstructured{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || r.Kind == "ComponentStatus" {
				continue
			}
			found, err := c.dynamic.Resource(gv.WithResource(r.Name)).List(t.Context(), metav1.ListOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				continue
			}
			if err != nil {
				t.Fatalf("list %s: %v", r.Name, err)
			}
			for i := range found.Items {
				o := &found.Items[i]
				if o.GetNamespace() == "default" && o.GetName() == "kubernetes" {
					continue // a server's own address, which it removes when it stops
				}
				all[fmt.Sprintf("%s/%s/%s/%s", gv, r.Name, o.GetNamespace(), o.GetName())] = o
			}
		}
	}
	return all
}

// compare compares two dumps, object by object with resourceVersions. Whatever has a
// revision after the given one was written after the move.
func compare(t *testing.T, before, after map[string]*unstructured.Unstructured, revision int64) {
	t.Helper()
	compared, rewritten, complaints := 0, 0, 0
	for _, path := range slices.Sorted(maps.Keys(before)) {
		a, b := before[path], after[path]
		if b != nil {
			if r, err := strconv.ParseInt(b.GetResourceVersion(), 10, 64); err != nil || r > revision {
				if isOurs(a) {
					t.Errorf("%s was written again, by %s", path, managers(b))
				}
				if diff := cmp.Diff(a.Object["spec"], b.Object["spec"]); diff != "" && a.GetKind() != "Lease" {
					t.Errorf("the spec of %s differs:\n%s", path, diff)
				}
				rewritten++
				continue
			}
		}
		if b == nil && isIdentity(a) {
			rewritten++
			continue
		}
		compared++
		if b != nil && reflect.DeepEqual(a.Object, b.Object) {
			continue
		}
		if complaints++; complaints > 10 {
			continue
		}
		if b == nil {
			t.Errorf("%s is gone", path)
		} else {
			t.Errorf("%s differs:\n%s", path, cmp.Diff(a.Object, b.Object))
		}
	}
	for path := range after {
		if r, err := strconv.ParseInt(after[path].GetResourceVersion(), 10, 64); before[path] == nil && (err != nil || r <= revision) {
			t.Errorf("%s was not there before", path)
		}
	}
	if complaints > 0 {
		t.Errorf("%d objects differ", complaints)
	}
	t.Logf("compared %d objects; %d of the servers' own were written again", compared, rewritten)
}

// isIdentity reports whether an object is the Lease of a server's identity. A server that
// starts deletes the one that a server before it has left, and creates it again.
func isIdentity(o *unstructured.Unstructured) bool {
	return o.GetKind() == "Lease" && o.GetLabels()["apiserver.kubernetes.io/identity"] != ""
}

// isOurs reports whether fill made an object that no controller of a server writes the
// status of.
func isOurs(o *unstructured.Unstructured) bool {
	if slices.Contains([]string{
		"FlowSchema", "PriorityLevelConfiguration", "APIService", "CustomResourceDefinition", "ServiceCIDR", "ResourceQuota", "ValidatingAdmissionPolicy",
	}, o.GetKind()) {
		return false
	}
	return strings.Contains(managers(o), "fill")
}

func managers(o *unstructured.Unstructured) string {
	var names []string
	for _, m := range o.GetManagedFields() {
		names = append(names, m.Manager)
	}
	data, err := json.Marshal(names)
	if err != nil {
		return err.Error()
	}
	return string(data)
}
