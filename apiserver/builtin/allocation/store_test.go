package allocation_test

import (
	"context"
	"sync"
	"testing"

	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/core/install"

	"byre/apiserver/storage"
	"byre/sqlstore"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// serve runs a store with its feed over a driver, as one server does, until the
// test ends, and returns what its registries would be given.
func serve(t *testing.T, driver sqlstore.Driver, sole bool) generic.RESTOptionsGetter {
	t.Helper()
	feed := watch.New(driver, watch.Options{SoleWriter: sole})
	store := sqlstore.New(driver, sqlstore.Options{Publish: feed.Publish})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = feed.Run(ctx) })
	running.Go(func() { _ = store.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return storage.NewRESTOptionsGetter(storage.GetterConfig{
		Store:       store,
		Feed:        feed,
		Serializer:  legacyscheme.Codecs,
		Scheme:      legacyscheme.Scheme,
		Encoding:    storage.BuiltinEncoding(legacyscheme.Scheme, compatibility.DefaultBuildEffectiveVersion()),
		Prefixes:    storage.BuiltinPrefixes(),
		Cohabitants: storage.BuiltinCohabitants(),
		Program:     "test",
	})
}

// newOptions is over a database of its own.
func newOptions(t *testing.T) generic.RESTOptionsGetter {
	t.Helper()
	return serve(t, storetest.NewModel(), true)
}
