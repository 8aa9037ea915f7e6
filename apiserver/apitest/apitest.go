package apitest

import (
	"encoding/json"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	endpointfilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/component-base/compatibility"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // the scheme's core group
	"k8s.io/kubernetes/pkg/apis/discovery"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install" // the scheme's discovery.k8s.io group

	"byre/apiserver/access/filters"
	"byre/apiserver/storage"
	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// Stores are the stores of the resources that a storage.LookupReader reads. They end with the
// test.
type Stores struct {
	// Reader reads them.
	Reader *storage.LookupReader

	driver sqlstore.Driver
	store  *sqlstore.Store
}

// NewStores makes empty stores.
func NewStores(t testing.TB) *Stores {
	t.Helper()
	driver := storetest.NewModel()
	store, feed := dbtest.RunStore(t, driver, watch.Options{})
	getter := storage.NewRESTOptionsGetter(storage.Backend{Store: store, Feed: feed},
		storage.BuiltinResources(compatibility.NewEffectiveVersionFromString("1.36", "1.36", "1.36")))
	for resource, kinds := range map[schema.GroupResource][2]func() runtime.Object{
		core.Resource("serviceaccounts"): {func() runtime.Object {
			return &core.ServiceAccount{}
		}, func() runtime.Object { return &core.ServiceAccountList{} }},
		core.Resource("pods"): {func() runtime.Object {
			return &core.Pod{}
		}, func() runtime.Object { return &core.PodList{} }},
		core.Resource("secrets"): {func() runtime.Object {
			return &core.Secret{}
		}, func() runtime.Object { return &core.SecretList{} }},
		core.Resource("nodes"): {func() runtime.Object {
			return &core.Node{}
		}, func() runtime.Object { return &core.NodeList{} }},
		core.Resource("services"): {func() runtime.Object {
			return &core.Service{}
		}, func() runtime.Object { return &core.ServiceList{} }},
		discovery.Resource("endpointslices"): {func() runtime.Object {
			return &discovery.EndpointSlice{}
		}, func() runtime.Object { return &discovery.EndpointSliceList{} }},
	} {
		opts, err := getter.GetRESTOptions(resource, kinds[0]())
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := opts.Decorator(opts.StorageConfig, "/"+opts.ResourcePrefix, nil, kinds[0], kinds[1],
			apistorage.DefaultNamespaceScopedAttr, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	return &Stores{Reader: storage.NewLookupReader(getter.Lookup), driver: driver, store: store}
}

// Object is an API object in the storage version of its resource.
type Object interface {
	runtime.Object
	metav1.Object
}

// Create stores an object of a resource without validating it.
func (s *Stores) Create(t testing.TB, resource schema.GroupResource, object Object) {
	t.Helper()
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		t.Fatal(err)
	}
	object, _ = object.DeepCopyObject().(Object)
	object.GetObjectKind().SetGroupVersionKind(kinds[0])
	value, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	s.commit(t,
		sqlstore.Write{Op: sqlstore.Create, Key: keyOf(resource, object), UID: string(object.GetUID()), Value: value})
}

// Delete removes an object that Create has stored.
func (s *Stores) Delete(t testing.TB, resource schema.GroupResource, object Object) {
	t.Helper()
	key := keyOf(resource, object)
	stored, _, err := s.driver.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	s.commit(t, sqlstore.Write{Op: sqlstore.Delete, Key: key, Replaces: stored.Revision})
}

func (s *Stores) commit(t testing.TB, w sqlstore.Write) {
	t.Helper()
	if _, err := s.store.Commit(t.Context(), w); err != nil {
		t.Fatal(err)
	}
}

func keyOf(resource schema.GroupResource, object Object) sqlstore.Key {
	return sqlstore.Key{Group: resource.Group, Resource: resource.Resource, Namespace: object.GetNamespace(),
		Name: object.GetName()}
}

// WithContext adds to the context of each request what upstream's handlers read from
// it: the request info, the user who, a recorder of warnings, the time of receipt and
// an audit context. The handler may replace the user.
func WithContext(handler http.Handler, who user.Info) http.Handler {
	handler = withUser(handler, who)
	handler = endpointfilters.WithRequestInfo(handler, filters.NewRequestInfoResolver())
	handler = endpointfilters.WithWarningRecorder(handler)
	handler = endpointfilters.WithRequestReceivedTimestamp(handler)
	return endpointfilters.WithAuditInit(handler)
}

func withUser(handler http.Handler, who user.Info) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		handler.ServeHTTP(w, req.WithContext(request.WithUser(req.Context(), who)))
	})
}
