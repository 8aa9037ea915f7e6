package storage

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/apiserver/pkg/util/compatibility"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/component-base/metrics/legacyregistry"
	api "k8s.io/kubernetes/pkg/apis/core"

	"byre/sqlstore"
	"byre/sqlstore/dbtest"
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
	if opts.StorageConfig.EncodeVersioner == nil || !opts.EnableGarbageCollection || opts.DeleteCollectionWorkers != 1 ||
		opts.CountMetricPollPeriod != 0 {
		t.Errorf("options are %+v", opts)
	}
	// Events are one resource with two names.
	of, _ := build(schema.GroupResource{Resource: "events"}, &api.Event{})
	if second, _ := build(events, &api.Event{}); second.Resource() != of.Resource() ||
		second.StorageVersion() != of.StorageVersion() || getter.Lookup(events) != of {
		t.Error("the two groups of events are kept apart")
	}
	if _, err := getter.GetRESTOptions(schema.GroupResource{Group: "nobody.example", Resource: "x"}, nil); err == nil {
		t.Error("a group that is not registered has storage")
	}
}

// listSeats returns the seats that priority and fairness charges for a request.
func listSeats(stats func(string) (apistorage.Stats, error), resource schema.GroupResource, query string) uint64 {
	estimate := flowcontrolrequest.NewWorkEstimator(stats,
		func(*request.RequestInfo) int { return 0 },
		flowcontrolrequest.DefaultWorkEstimatorConfig(),
		func(string) uint64 { return 100 })
	req := httptest.NewRequest(http.MethodGet, "/x?"+query, nil)
	info := &request.RequestInfo{IsResourceRequest: true, Verb: "list", APIGroup: resource.Group,
		Resource: resource.Resource}
	return estimate(req.WithContext(request.WithRequestInfo(req.Context(), info)), "flow", "level").InitialSeats
}

// newGetter makes a Getter that has a Store of pods.
func newGetter(t *testing.T, driver sqlstore.Driver) *RESTOptionsGetter {
	t.Helper()
	t.Cleanup(func() { driver.Close() })
	feed := watch.New(driver, watch.Options{Interval: 50 * time.Millisecond})
	store := sqlstore.New(driver, sqlstore.Options{Publish: feed.Publish})
	dbtest.Serve(t, "feed", feed.Run)
	dbtest.Serve(t, "store", store.Run)
	g := NewRESTOptionsGetter(Backend{Store: store, Feed: feed}, &SchemeResources{})
	g.stores[schema.GroupResource{Resource: "pods"}] = &Store{}
	return g
}

// Lists cost the seats that a stock server charges for the same objects: upstream's
// estimator gets their number and average size.
func TestList_SeatsAreUpstreams(t *testing.T) {
	t.Parallel()
	opens := map[string]func(testing.TB) sqlstore.Driver{
		"model":    func(testing.TB) sqlstore.Driver { return storetest.NewModel() },
		"sqlite":   dbtest.SQLite,
		"postgres": dbtest.Postgres,
	}
	for name, open := range opens {
		t.Run(name, func(t *testing.T) {
			g := newGetter(t, open(t))
			stock := flowcontrolrequest.NewStorageObjectCountTracker()
			for _, r := range []struct {
				schema.GroupResource
				owner         sqlstore.Owner
				objects, size int
			}{
				{schema.GroupResource{Resource: "pods"}, sqlstore.BuiltIn, 5, 300},
				{schema.GroupResource{Group: "apps", Resource: "deployments"}, sqlstore.BuiltIn, 400, 1000},
				{schema.GroupResource{Group: "example.com", Resource: "widgets"}, sqlstore.Custom, 70, 10_000},
				{schema.GroupResource{Group: "example.com", Resource: "giants"}, sqlstore.Custom, 9, 300_000},
			} {
				value := fmt.Sprintf("%q", strings.Repeat("x", r.size-2))
				for i := range r.objects {
					key := sqlstore.Key{Group: r.Group, Resource: r.Resource, Owner: r.owner, Namespace: "n", Name: fmt.Sprint(i)}
					if _, err := g.cfg.Store.Commit(t.Context(),
						sqlstore.Write{Op: sqlstore.Create, Key: key, Value: []byte(value)}); err != nil {
						t.Fatal(err)
					}
				}
				stock.Set(r.String(),
					apistorage.Stats{ObjectCount: int64(r.objects), EstimatedAverageObjectSizeBytes: int64(r.size) + 1})
				if _, err := g.cfg.Feed.WaitForUsage(t.Context(), sqlstore.Resource{Resource: "pods"}); err != nil {
					t.Fatal(err)
				}
				for _, query := range []string{"", "resourceVersion=0", "limit=50", "labelSelector=a%3Db",
					"resourceVersion=0&limit=500"} {
					got, want := listSeats(g.Stats, r.GroupResource, query), listSeats(stock.Get, r.GroupResource, query)
					if got != want {
						t.Errorf("list of %s?%s: %d seats, a stock server charges %d", r, query, got, want)
					}
				}
			}
			if got := listSeats(g.Stats, schema.GroupResource{Resource: "nothing"}, ""); got != 1 {
				t.Errorf("a list of nothing costs %d seats", got)
			}
		})
	}
}

// The gauges have upstream's names and labels. A custom resource without objects has none.
func TestMetrics_HaveUpstreamsNames(t *testing.T) {
	metrics.Register()
	g := newGetter(t, storetest.NewModel())
	g.stores[schema.GroupResource{Group: "apps", Resource: "deployments"}] = nil
	if _, err := g.cfg.Feed.WaitForUsage(t.Context(), sqlstore.Resource{Resource: "pods"}); err != nil {
		t.Fatal(err)
	}
	key := sqlstore.Key{Group: "example.com", Resource: "widgets", Owner: sqlstore.Custom, Name: "a"}
	created, err := g.cfg.Store.Commit(t.Context(),
		sqlstore.Write{Op: sqlstore.Create, Key: key, Value: []byte(`"1234567"`)})
	if err != nil {
		t.Fatal(err)
	}
	pod := sqlstore.Key{Resource: "pods", Namespace: "ns", Name: "a"}
	if _, err := g.cfg.Store.Commit(t.Context(),
		sqlstore.Write{Op: sqlstore.Create, Key: pod, Value: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	exported := func() string {
		g.UpdateMetrics()
		w := httptest.NewRecorder()
		legacyregistry.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return w.Body.String()
	}
	text := exported()
	for _, want := range []string{
		`apiserver_storage_objects{resource="pods"} 1`,
		`apiserver_storage_objects{resource="deployments.apps"} 0`,
		`apiserver_storage_objects{resource="widgets.example.com"} 1`,
		`apiserver_resource_objects{group="example.com",resource="widgets"} 1`,
		`apiserver_resource_size_estimate_bytes{group="example.com",resource="widgets"} 10`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("/metrics is missing %s", want)
		}
	}
	if _, err := g.cfg.Store.Commit(t.Context(),
		sqlstore.Write{Op: sqlstore.Delete, Key: key, Replaces: created.Revision}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(exported(), "widgets") {
		t.Error("/metrics has a resource without objects")
	}
}
