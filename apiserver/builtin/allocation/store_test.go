package allocation_test

import (
	"testing"

	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/util/compatibility"
	_ "k8s.io/kubernetes/pkg/apis/core/install"

	"byre/apiserver/objectstore"
	"byre/sqlstore"
	"byre/sqlstore/storetest"
	"byre/watch"
	"byre/watch/watchtest"
)

// serve runs a store with its feed over a driver, as one server does, until the
// test ends, and returns what its registries would be given.
func serve(t *testing.T, driver sqlstore.Driver) generic.RESTOptionsGetter {
	t.Helper()
	store, feed := watchtest.Run(t, driver, watch.Options{})
	return objectstore.NewRESTOptionsGetter(objectstore.StorageConfig{Store: store, Feed: feed}, objectstore.BuiltinResources(compatibility.DefaultBuildEffectiveVersion()))
}

// newOptions is over a database of its own.
func newOptions(t *testing.T) generic.RESTOptionsGetter {
	t.Helper()
	return serve(t, storetest.NewModel())
}
