package cluster

import (
	"context"
	_ "embed"
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
	"byre/sqlstore/storetest"
)

// Cluster talks to a server.
type Cluster struct {
	Dynamic   dynamic.Interface
	Discovery *discovery.DiscoveryClient
}

// Connect returns a Cluster of a configuration's server. It changes the configuration: the
// client has no limits of its own, and discards warnings.
func Connect(t *testing.T, config *rest.Config) *Cluster {
	t.Helper()
	c := &Cluster{}
	var err error
	config.WarningHandler = rest.NoWarnings{}
	config.QPS, config.Burst = -1, -1
	if c.Dynamic, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if c.Discovery, err = discovery.NewDiscoveryClientForConfig(config); err != nil {
		t.Fatal(err)
	}
	return c
}

// definitions are CustomResourceDefinitions and objects of which a cluster has one. objects
// are instances of the definitions, and objects of the built-in kinds that package manifests
// lacks; each namespace has them, with its name for ${NS}.
var (
	//go:embed definitions.yaml
	definitions string
	//go:embed objects.yaml
	objects string
)

// single are kinds of which Fill creates no copies: each object slows every request, or makes
// the server refuse other objects, or its name says what its signer is.
var single = []string{
	"Namespace", "ResourceQuota", "LimitRange", "FlowSchema", "PriorityLevelConfiguration", "MutatingWebhookConfiguration",
	"ValidatingWebhookConfiguration",
	"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicy",
	"MutatingAdmissionPolicyBinding", "Service", "Endpoints", "ClusterTrustBundle",
}

// Fill creates about n objects of all kinds, in the namespaces "shop" and "office", and
// returns how many it created: at least one of each kind, also if n is smaller.
func (c *Cluster) Fill(t *testing.T, n int) int {
	t.Helper()
	defined, err := manifests.Parse(definitions)
	if err != nil {
		t.Fatal(err)
	}
	made := c.create(t, 1, defined...)
	storetest.EventuallySucceeds(t, "the definitions are in discovery", func() error {
		list, err := c.Discovery.ServerResourcesForGroupVersion("example.com/v1")
		if err == nil && len(list.APIResources) < 2 {
			err = errors.New("a resource of example.com/v1 is missing")
		}
		return err
	})
	var all, last []*unstructured.Unstructured
	for _, namespace := range []string{"shop", "office"} {
		builtIn, err := manifests.Read(namespace)
		if err != nil {
			t.Fatal(err)
		}
		custom, err := manifests.Parse(strings.ReplaceAll(objects, "${NS}", namespace))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range append(builtIn, custom...) {
			switch o.GetKind() {
			case "Namespace":
				made += c.create(t, 1, o)
			case "ResourceQuota", "LimitRange": // with them the server may refuse the others
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
	made += c.create(t, 1, first...) // one at a time: some need objects before them
	made += c.create(t, 8, all[len(first):]...)
	return made + c.create(t, 1, last...)
}

// create creates objects, as many at a time as there are workers, and returns their number.
// Discovery must have their resources already.
func (c *Cluster) create(t *testing.T, workers int, all ...*unstructured.Unstructured) int {
	t.Helper()
	groups, err := restmapper.GetAPIGroupResources(c.Discovery)
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
	for _, o := range all {
		queue <- o
	}
	close(queue)
	wait.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return len(all)
}

func (c *Cluster) createOne(ctx context.Context, mapper meta.RESTMapper, o *unstructured.Unstructured) error {
	gvk := o.GroupVersionKind()
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return err
	}
	resource := dynamic.ResourceInterface(c.Dynamic.Resource(mapping.Resource))
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		resource = c.Dynamic.Resource(mapping.Resource).Namespace(o.GetNamespace())
	}
	ctx, cancel := context.WithTimeout(ctx, storetest.Patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err = resource.Create(ctx, o, metav1.CreateOptions{FieldManager: "fill"})
		if !apierrors.IsForbidden(err) {
			return err
		}
		// Admission may not have seen yet an object that this one needs: its namespace, its class.
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// Resources returns the resources that the server's discovery names and that can be listed
// and watched, each in the version that the server prefers.
func (c *Cluster) Resources(t *testing.T) []schema.GroupVersionResource {
	t.Helper()
	lists, err := c.Discovery.ServerPreferredResources()
	var partly *discovery.ErrGroupDiscoveryFailed
	if err != nil && !errors.As(err, &partly) { // no backend serves the group of the APIService
		t.Fatal(err)
	}
	var all []schema.GroupVersionResource
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "watch"}}, lists) {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		if gv.Group == "history.byre.dev" {
			continue // what happened to the others
		}
		for _, r := range list.APIResources {
			all = append(all, gv.WithResource(r.Name))
		}
	}
	return all
}

// Dump returns all objects that a server serves, by group, version, resource, namespace and
// name. It fails the test if a resource has no object, since a comparison would not cover it.
func (c *Cluster) Dump(t *testing.T) map[string]*unstructured.Unstructured {
	t.Helper()
	all := map[string]*unstructured.Unstructured{}
	resources := c.Resources(t)
	for _, r := range resources {
		found, err := c.Dynamic.Resource(r).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatalf("list %s: %v", r.GroupResource(), err)
		}
		if len(found.Items) == 0 {
			t.Errorf("there is no object of %s: objects.yaml lacks one", r.GroupResource())
		}
		for i := range found.Items {
			o := &found.Items[i]
			if o.GetNamespace() == "default" && o.GetName() == "kubernetes" {
				continue // a server's own address, which it removes when it stops
			}
			all[fmt.Sprintf("%s/%s/%s/%s", r.GroupVersion(), r.Resource, o.GetNamespace(), o.GetName())] = o
		}
	}
	t.Logf("%d objects of %d resources", len(all), len(resources))
	return all
}

// Compare fails the test unless two dumps have the same objects with the same
// resourceVersions. An object whose resourceVersion is greater than the given revision was
// written by the servers after the first dump: of that only the spec is compared, and it must
// not be one that only Fill writes.
func Compare(t *testing.T, before, after map[string]*unstructured.Unstructured, revision int64) {
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
		if r, err := strconv.ParseInt(after[path].GetResourceVersion(), 10, 64); before[path] == nil &&
			(err != nil || r <= revision) {
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

// isOurs reports whether Fill created the object, and no controller of a server writes its
// status.
func isOurs(o *unstructured.Unstructured) bool {
	if slices.Contains([]string{
		"FlowSchema", "PriorityLevelConfiguration", "APIService", "CustomResourceDefinition", "ServiceCIDR", "ResourceQuota",
		"ValidatingAdmissionPolicy",
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
