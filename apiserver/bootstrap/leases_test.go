package bootstrap_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/registry/generic"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/compatibility"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"

	"byre/apiserver/bootstrap"
	"byre/apiserver/storage"
	"byre/sqlstore"
	"byre/sqlstore/storetest"

	"byre/sqlstore/dbtest"
	"byre/watch"
)

// replicaOn returns the entries of servers in a database that other replicas use too.
func replicaOn(t *testing.T, driver sqlstore.Driver) reconcilers.Leases {
	t.Helper()
	leases, err := bootstrap.NewStoredLeases(options(t, driver))
	if err != nil {
		t.Fatal(err)
	}
	return leases
}

// options returns the options of a server with its own store and feed, which runs until the
// test ends.
func options(t *testing.T, driver sqlstore.Driver) generic.RESTOptionsGetter {
	t.Helper()
	store, feed := dbtest.RunStore(t, storetest.Shared(driver), watch.Options{})
	return optionsOf(store, feed)
}

func optionsOf(store *sqlstore.Store, feed *watch.Feed) generic.RESTOptionsGetter {
	return storage.NewRESTOptionsGetter(storage.Backend{Store: store, Feed: feed}, storage.BuiltinResources(compatibility.DefaultBuildEffectiveVersion()))
}

// TestLeases_ExpireWithoutRenewal: servers see one another's entries. An entry expires some
// time after its last renewal; a removed entry is gone at once.
func TestLeases_ExpireWithoutRenewal(t *testing.T) {
	driver := storetest.NewModel()
	first, second := replicaOn(t, driver), replicaOn(t, driver)
	for replica, ip := range map[reconcilers.Leases]string{first: "192.0.2.7", second: "fd00::7"} {
		if err := replica.UpdateLease(ip); err != nil {
			t.Fatal(err)
		}
	}
	for name, replica := range map[string]reconcilers.Leases{"first": first, "second": second} {
		ips, err := replica.ListLeases()
		slices.Sort(ips)
		if err != nil || !slices.Equal(ips, []string{"192.0.2.7", "fd00::7"}) {
			t.Errorf("%s sees %v, %v", name, ips, err)
		}
	}

	expires := func() time.Time {
		record, _, err := driver.Get(t.Context(), sqlstore.Key{Resource: "apiserveripinfo", Name: "192.0.2.7"})
		if err != nil {
			t.Fatal(err)
		}
		return record.Expires
	}
	before := expires()
	if life := time.Until(before); life <= 0 || life > bootstrap.LeaseTTL {
		t.Errorf("an entry lives for %v", life)
	}
	if err := first.UpdateLease("192.0.2.7"); err != nil {
		t.Fatal(err)
	}
	if after := expires(); !after.After(before) {
		t.Errorf("renewed, it expires at %v; it was %v", after, before)
	}

	if err := first.RemoveLease("192.0.2.7"); err != nil {
		t.Fatal(err)
	}
	if ips, err := second.ListLeases(); err != nil || !slices.Equal(ips, []string{"fd00::7"}) {
		t.Errorf("after one was taken out: %v, %v", ips, err)
	}
	if err := first.RemoveLease("192.0.2.7"); !apistorage.IsNotFound(err) {
		t.Errorf("taken out again: %v", err)
	}
}

// full is a database that has reached its quota.
type full struct{ *storetest.Model }

func (full) Size(context.Context) (int64, error) { return 1, nil }
func (full) Used(context.Context) (int64, error) { return 1, nil }

// TestLeases_AreRenewedAtTheQuota: the tenth renewal is longer than the ninth.
func TestLeases_AreRenewedAtTheQuota(t *testing.T) {
	driver := full{storetest.NewModel()}
	feed := watch.New(driver, watch.Options{})
	store := sqlstore.New(driver, sqlstore.Options{Publish: feed.Publish, Quota: 1})
	dbtest.Serve(t, "store", store.Run)
	dbtest.Serve(t, "feed", feed.Run)
	storetest.Eventually(t, "the quota is reached", func() bool { return store.Quota() != nil })
	leases, err := bootstrap.NewStoredLeases(optionsOf(store, feed))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if err := leases.UpdateLease("192.0.2.7"); err != nil {
			t.Fatalf("update %d: %v", i+1, err)
		}
	}
}
