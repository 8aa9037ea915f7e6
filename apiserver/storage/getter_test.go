package storage

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/util/compatibility"
	api "k8s.io/kubernetes/pkg/apis/core"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
	"byre/watch"
)

func TestRESTOptionsGetter_BuildsStores(t *testing.T) {
	t.Parallel()
	model := storetest.NewModel()
	getter := NewRESTOptionsGetter(
		Backend{Store: sqlstore.New(model, sqlstore.Options{}), Feed: watch.New(model, watch.Options{})},
		BuiltinResources(compatibility.DefaultBuildEffectiveVersion()))
	events := schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
	if getter.Lookup(events) != nil {
		t.Error("there is a store before one was built")
	}
	build := func(gr schema.GroupResource, example runtime.Object) (*Store, generic.RESTOptions) {
		opts, err := getter.GetRESTOptions(gr, example)
		if err != nil {
			t.Fatal(err)
		}
		s, destroy, err := opts.Decorator(opts.StorageConfig, "/"+opts.ResourcePrefix, nil,
			example.DeepCopyObject, example.DeepCopyObject, nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		destroy()
		return s.(*Store), opts
	}
	nodes, opts := build(schema.GroupResource{Resource: "nodes"}, &api.Node{})
	if opts.ResourcePrefix != "minions" || getter.Lookup(schema.GroupResource{Resource: "nodes"}) != nodes {
		t.Errorf("nodes are kept under %q", opts.ResourcePrefix)
	}
	if opts.StorageConfig.EncodeVersioner == nil || !opts.EnableGarbageCollection || opts.DeleteCollectionWorkers != 1 || opts.CountMetricPollPeriod != 0 {
		t.Errorf("options are %+v", opts)
	}
	// Events are one resource with two names.
	of, _ := build(schema.GroupResource{Resource: "events"}, &api.Event{})
	if second, _ := build(events, &api.Event{}); second.Resource() != of.Resource() || second.StorageVersion() != of.StorageVersion() || getter.Lookup(events) != of {
		t.Error("the two groups of events are kept apart")
	}
	if _, err := getter.GetRESTOptions(schema.GroupResource{Group: "nobody.example", Resource: "x"}, nil); err == nil {
		t.Error("a group that is not registered has storage")
	}
}
