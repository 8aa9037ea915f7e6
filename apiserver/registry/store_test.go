package registry_test

import (
	"testing"

	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/util/compatibility"
	_ "k8s.io/kubernetes/pkg/apis/core/install"

	"byre/apiserver/storage"
	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// serve runs a store and its feed over a driver until the test ends, as one server does,
// and returns the options that its registries would get.
func serve(t *testing.T, driver sqlstore.Driver) generic.RESTOptionsGetter {
	t.Helper()
	store, feed := dbtest.RunStore(t, driver, watch.Options{})
	return storage.NewRESTOptionsGetter(storage.Backend{Store: store, Feed: feed}, storage.BuiltinResources(compatibility.DefaultBuildEffectiveVersion()))
}

// newOptions returns the options of a server over a database of its own.
func newOptions(t *testing.T) generic.RESTOptionsGetter {
	t.Helper()
	return serve(t, storetest.NewModel())
}
