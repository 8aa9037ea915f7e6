package controllers

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
)

// newQuotas makes a lazyQuotaController with the given discovery. The namespace default has a
// ResourceQuota for each of the resource names.
func newQuotas(t *testing.T, discover func() ([]*metav1.APIResourceList, error), names ...v1.ResourceName) *lazyQuotaController {
	t.Helper()
	evaluators, err := core.NewEvaluators(nil, informers.NewSharedInformerFactory(fake.NewClientset(), 0), nil)
	if err != nil {
		t.Fatal(err)
	}
	known := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, name := range names {
		quota := &v1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: strings.ReplaceAll(string(name), "/", "-")},
			Spec:       v1.ResourceQuotaSpec{Hard: v1.ResourceList{name: resource.MustParse("1")}},
		}
		if err := known.Add(quota); err != nil {
			t.Fatal(err)
		}
	}
	return &lazyQuotaController{lister: corelisters.NewResourceQuotaLister(known), evaluators: evaluators, discover: discover}
}

func served() ([]*metav1.APIResourceList, error) {
	return resourceSet{
		{Version: "v1", Resource: "pods"}:                                        {},
		{Version: "v1", Resource: "services"}:                                    {},
		{Version: "v1", Resource: "configmaps"}:                                  {},
		{Version: "v1", Resource: "events"}:                                      {},
		{Version: "v1", Resource: "persistentvolumeclaims"}:                      {},
		{Version: "v1", Resource: "resourcequotas"}:                              {},
		{Group: "apps", Version: "v1", Resource: "deployments"}:                  {},
		{Group: "example.com", Version: "v2", Resource: "widgets"}:               {},
		{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims"}:    {},
		{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}: {},
	}.apiResourceLists()
}

func TestQuota_CountsOnlyNamedResources(t *testing.T) {
	tests := []struct {
		names []v1.ResourceName
		want  []string // without the quotas themselves
	}{
		{nil, nil},
		{[]v1.ResourceName{"pods"}, []string{"pods"}},
		{[]v1.ResourceName{"requests.cpu", "limits.memory"}, []string{"pods"}},
		{[]v1.ResourceName{"services.nodeports"}, []string{"services"}},
		{[]v1.ResourceName{"gold.storageclass.storage.k8s.io/requests.storage"}, []string{"persistentvolumeclaims"}},
		{[]v1.ResourceName{"configmaps", "count/configmaps"}, []string{"configmaps"}},
		{[]v1.ResourceName{"count/deployments.apps", "count/widgets.example.com"}, []string{"deployments", "widgets"}},
		{[]v1.ResourceName{"gpu.deviceclass.resource.k8s.io/devices"}, []string{"resourceclaims"}},
		{[]v1.ResourceName{"requests.example.com/gpu"}, []string{"pods", "resourceclaims"}},
		{[]v1.ResourceName{"count/events", "count/unknown.example.com", "resourcequotas"}, nil},
	}
	for _, test := range tests {
		got, _, err := newQuotas(t, served, test.names...).quotaResources(nil)
		if err != nil {
			t.Fatal(err)
		}
		quotas := schema.GroupVersionResource{Version: "v1", Resource: "resourcequotas"}
		if _, ok := got[quotas]; ok != (len(test.names) > 0) {
			t.Errorf("%v: the quotas themselves are counted: %v", test.names, ok)
		}
		delete(got, quotas)
		var counted []string
		for gvr := range got {
			counted = append(counted, gvr.Resource)
		}
		if slices.Sort(counted); !slices.Equal(counted, test.want) {
			t.Errorf("%v: counted are %v, want %v", test.names, counted, test.want)
		}
	}
}

func TestQuota_KeepsCountingWhenDiscoveryFails(t *testing.T) {
	down := func() ([]*metav1.APIResourceList, error) {
		lists, _ := resourceSet{{Version: "v1", Resource: "pods"}: {}}.apiResourceLists()
		return lists, &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{{Group: "example.com", Version: "v2"}: nil}}
	}
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v2", Resource: "widgets"}
	gone := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	got, _, err := newQuotas(t, down, "pods", "count/widgets.example.com").quotaResources(resourceSet{widgets: {}, gone: {}})
	if err != nil {
		t.Fatal(err)
	}
	want := resourceSet{
		widgets:                           {},
		{Version: "v1", Resource: "pods"}: {},
		{Version: "v1", Resource: "resourcequotas"}: {},
	}
	if !maps.Equal(got, want) {
		t.Errorf("counted are %v, want %v", got, want)
	}
}

// TestQuota_StartsAgain: a controller that could not start is tried again, until it runs or
// is stopped.
func TestQuota_StartsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQuotas(t, served)
		starts := 0
		q.runUpstream = func(ctx context.Context, _ resourceSet) error {
			if starts++; starts < 3 {
				return errors.New("not yet")
			}
			<-ctx.Done()
			return nil
		}
		begun := time.Now()
		stop := q.startController(t.Context(), resourceSet{v1.SchemeGroupVersion.WithResource("pods"): {}})
		time.Sleep(time.Minute)
		stop()
		if starts != 3 {
			t.Errorf("started %d times in %v", starts, time.Since(begun))
		}
	})
}
