package bootstrap_test

import (
	"context"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/generic"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/kubernetes/fake"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"

	"byre/apiserver/bootstrap"
	"byre/apiserver/storage"
	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// TestEndpoints_FollowReadiness: a ready server is among the endpoints, with its port, and
// is removed when it stops.
func TestEndpoints_FollowReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&corev1.Endpoints{
			ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default"},
			Subsets: []corev1.EndpointSubset{{
				Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}},
				Ports:     []corev1.EndpointPort{{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP}},
			}},
		})
		c := config(t, client)
		ready := make(chan struct{})
		c.Ready = ready
		stop := run(t, c)
		if got := addresses(t, client); !slices.Equal(got, []string{"192.0.2.1:443"}) {
			t.Errorf("before it is ready: %v", got)
		}
		close(ready)
		synctest.Wait()
		if got := addresses(t, client); !slices.Equal(got, []string{"192.0.2.7:6443"}) {
			t.Errorf("when it is ready: %v", got)
		}
		slice, err := client.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err != nil || len(slice.Endpoints) != 1 || slice.Endpoints[0].Addresses[0] != "192.0.2.7" ||
			*slice.Ports[0].Port != 6443 {
			t.Errorf("slice %+v, %v", slice, err)
		}
		stop()
		if got := addresses(t, client); len(got) != 0 {
			t.Errorf("after it stopped: %v", got)
		}
	})
}

// TestEndpoints_ReplaceTheEntryOfAKilledServer: the entry of a killed server is replaced
// when another server starts at its address; the entries of others stay.
func TestEndpoints_ReplaceTheEntryOfAKilledServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		replicas := &table{up: map[string]bool{}}
		other := config(t, client)
		other.Leases = replicas
		other.Service.AdvertiseAddress = net.IPv4(192, 0, 2, 8)
		defer run(t, other)()
		killed := config(t, client)
		killed.Leases = replicas
		_ = replicas.UpdateLease("192.0.2.7")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := addresses(t, client); !slices.Equal(got, []string{"192.0.2.7:6443", "192.0.2.8:6443"}) {
			t.Errorf("left over: %v", got)
		}
		killed.Ready = make(chan struct{})
		defer run(t, killed)()
		if got := addresses(t, client); !slices.Equal(got, []string{"192.0.2.8:6443"}) {
			t.Errorf("started again, but not ready: %v", got)
		}
	})
}

// TestEndpoints_AreAllLiveReplicas: the endpoints are all servers whose entries have not
// expired.
func TestEndpoints_AreAllLiveReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		replicas := &table{up: map[string]bool{}}
		first := config(t, client)
		first.Leases = replicas
		second := first
		second.Service.AdvertiseAddress = net.IPv4(192, 0, 2, 8)
		stopFirst, stopSecond := run(t, first), run(t, second)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := addresses(t, client); !slices.Equal(got, []string{"192.0.2.7:6443", "192.0.2.8:6443"}) {
			t.Errorf("both: %v", got)
		}
		stopFirst()
		if got := addresses(t, client); !slices.Equal(got, []string{"192.0.2.8:6443"}) {
			t.Errorf("one left: %v", got)
		}
		stopSecond()
	})
}

// TestEndpoints_LeaveOutALoopbackAddress: a loopback address is not published. Validation
// allows none in endpoints, so a write with one would fail at every retry.
func TestEndpoints_LeaveOutALoopbackAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		c := config(t, client)
		c.Service.AdvertiseAddress = net.IPv4(127, 0, 0, 1)
		stop := run(t, c)
		defer stop()
		if got := addresses(t, client); len(got) != 0 {
			t.Errorf("endpoints %v", got)
		}
	})
}

// addresses returns the ready addresses of the kubernetes Service with its port.
func addresses(t *testing.T, client *fake.Clientset) []string {
	t.Helper()
	endpoints, err := client.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		return nil
	}
	var all []string
	for _, subset := range endpoints.Subsets {
		for _, address := range subset.Addresses {
			all = append(all, net.JoinHostPort(address.IP, portOf(subset)))
		}
	}
	slices.Sort(all)
	return all
}

func portOf(subset corev1.EndpointSubset) string {
	return strconv.Itoa(int(subset.Ports[0].Port))
}

// table holds the entries of replicas in memory, without a database.
type table struct {
	mu sync.Mutex
	up map[string]bool
}

func (t *table) ListLeases() ([]string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Keys(t.up)), nil
}

func (t *table) UpdateLease(ip string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.up[ip] = true
	return nil
}

func (t *table) RemoveLease(ip string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.up, ip)
	return nil
}

func (*table) Destroy() {}

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
	return storage.NewRESTOptionsGetter(storage.Backend{Store: store, Feed: feed},
		storage.BuiltinResources(compatibility.DefaultBuildEffectiveVersion()))
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
