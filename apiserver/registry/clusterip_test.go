package registry_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	api "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"

	"byre/apiserver/registry"
	"byre/apiserver/storage"
	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
	"byre/watch"
)

func cidr(t *testing.T, s string) net.IPNet {
	t.Helper()
	if s == "" {
		return net.IPNet{}
	}
	_, c, err := net.ParseCIDR(s)
	if err != nil {
		t.Fatal(err)
	}
	return *c
}

// newClusterIPs returns an allocator over a ready ServiceCIDR of the two ranges and over
// the given other objects.
func newClusterIPs(
	t *testing.T, primary, secondary string, there ...runtime.Object,
) (*registry.ClusterIPs, *fake.Clientset) {
	t.Helper()
	client := newClient(primary, secondary, there...)
	return startClusterIPs(t, client, primary, secondary), client
}

func newClient(primary, secondary string, there ...runtime.Object) *fake.Clientset {
	cidrs := []string{primary}
	if secondary != "" {
		cidrs = append(cidrs, secondary)
	}
	return fake.NewClientset(append(there, &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
		Status: networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{{
			Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue,
		}}},
	})...)
}

// startClusterIPs returns an allocator over the objects of client. Its informers have synced.
func startClusterIPs(t *testing.T, client *fake.Clientset, primary, secondary string) *registry.ClusterIPs {
	t.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithCustomResyncConfig(registry.AllocatorResync()))
	ips, err := registry.NewClusterIPs(client, factory, cidr(t, primary), cidr(t, secondary))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	factory.Start(ctx.Done())
	t.Cleanup(func() {
		ips.Stop()
		cancel()
		factory.Shutdown()
	})
	factory.WaitForCacheSync(ctx.Done())
	return ips
}

// allocate takes the next address of a family. It retries until the allocator knows the
// ServiceCIDR.
func allocate(t *testing.T, ips *registry.ClusterIPs, family api.IPFamily) (net.IP, error) {
	t.Helper()
	allocator := ips.ByFamily[family].(*ipallocator.MetaAllocator)
	storetest.Eventually(t, "the ServiceCIDR is followed", func() bool { return allocator.Free()+allocator.Used() > 0 })
	return allocator.AllocateNextService(&api.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}})
}

// TestClusterIPs_FirstFamilyIsTheDefault: each range has its allocator, and a Service that
// asks for no family gets the family of the first range.
func TestClusterIPs_FirstFamilyIsTheDefault(t *testing.T) {
	ips, client := newClusterIPs(t, "fd00:1::/112", "10.9.0.0/24")
	if ips.Primary != api.IPv6Protocol {
		t.Errorf("primary family %s", ips.Primary)
	}
	for family, within := range map[api.IPFamily]string{api.IPv4Protocol: "10.9.0.0/24",
		api.IPv6Protocol: "fd00:1::/112"} {
		ip, err := allocate(t, ips, family)
		if err != nil {
			t.Fatal(err)
		}
		if c := cidr(t, within); !c.Contains(ip) {
			t.Errorf("%s is not in %s", ip, within)
		}
		address, err := client.NetworkingV1().IPAddresses().Get(t.Context(), ip.String(), metav1.GetOptions{})
		if err != nil || address.Spec.ParentRef.Name != "a" {
			t.Errorf("IPAddress of %s: %v, %v", ip, address, err)
		}
	}
}

// TestClusterIPs_RefuseOneFamilyTwice: two ranges of one family are an error.
func TestClusterIPs_RefuseOneFamilyTwice(t *testing.T) {
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	if _, err := registry.NewClusterIPs(client, factory, cidr(t, "10.9.0.0/24"), cidr(t, "10.8.0.0/24")); err == nil {
		t.Error("two ranges of one family are accepted")
	}
}

// TestClusterIPs_AllocateEachAddressOnce: concurrent allocators give out each address once;
// then the range is full.
func TestClusterIPs_AllocateEachAddressOnce(t *testing.T) {
	ips, _ := newClusterIPs(t, "10.9.0.0/29", "")
	const addresses = 6 // without the network and broadcast addresses
	var (
		mu    sync.Mutex
		given = map[string]bool{}
		wg    sync.WaitGroup
	)
	for range addresses {
		wg.Go(func() {
			ip, err := allocate(t, ips, api.IPv4Protocol)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if given[ip.String()] {
				t.Errorf("%s given twice", ip)
			}
			given[ip.String()] = true
		})
	}
	wg.Wait()
	if ip, err := allocate(t, ips, api.IPv4Protocol); !errors.Is(err, ipallocator.ErrFull) {
		t.Errorf("got %s of a full range, %v", ip, err)
	}
}

// TestClusterIPs_AreKnownOnceRepaired: after the first repair, with which a server becomes ready,
// each family gives out addresses, also in a server that finds its ServiceCIDR as an earlier one left it.
func TestClusterIPs_AreKnownOnceRepaired(t *testing.T) {
	for range 20 {
		ips, _ := newClusterIPs(t, "10.9.0.0/24", "fd00:1::/112")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		ips.Repair(ctx, func() {
			defer cancel()
			for family, allocator := range ips.ByFamily {
				if _, err := allocator.DryRun().AllocateNext(); err != nil {
					t.Errorf("%s: %v", family, err)
				}
			}
		})
	}
}

// TestClusterIPs_ARangeWithoutAllocatorIsNotAwaited: upstream makes no allocator for an IPv6 range shorter than /64,
// which the default ServiceCIDR of a cluster that kube-apiserver served may have.
func TestClusterIPs_ARangeWithoutAllocatorIsNotAwaited(t *testing.T) {
	ips, _ := newClusterIPs(t, "10.9.0.0/24", "fd00:1::/48")
	ctx, cancel := context.WithTimeout(t.Context(), storetest.Patience)
	repaired := false
	if ips.Repair(ctx, func() { repaired = true; cancel() }); !repaired {
		t.Error("the repair waits for addresses that no allocator has")
	}
}

// restored is a Service of which the repair makes an IPAddress where there is none, as after a restore from another
// cluster.
func restored() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "restored", UID: types.UID("1")},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.9.0.77", ClusterIPs: []string{"10.9.0.77"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		},
	}
}

// repairRestored runs the repair until its first success and checks the IPAddress of restored.
func repairRestored(t *testing.T, ips *registry.ClusterIPs, client *fake.Clientset) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ips.Repair(ctx, cancel)
	address, err := client.NetworkingV1().IPAddresses().Get(t.Context(), "10.9.0.77", metav1.GetOptions{})
	if err != nil || address.Spec.ParentRef.Name != "restored" {
		t.Errorf("IPAddress %v, %v", address, err)
	}
}

// TestClusterIPs_AreRepaired: the repair creates the IPAddress of a Service that has an
// address without one.
func TestClusterIPs_AreRepaired(t *testing.T) {
	ips, client := newClusterIPs(t, "10.9.0.0/24", "", restored())
	repairRestored(t, ips, client)
}

// TestClusterIPs_AnotherReplicaRepairsFirst: an IPAddress that another replica creates at the same time is as good as
// the repair's own.
func TestClusterIPs_AnotherReplicaRepairsFirst(t *testing.T) {
	ips, client := newClusterIPs(t, "10.9.0.0/24", "", restored())
	client.PrependReactor("create", "ipaddresses", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create := action.(clienttesting.CreateAction)
		if err := client.Tracker().Create(create.GetResource(), create.GetObject(), ""); err != nil {
			t.Error(err)
		}
		return false, nil, nil
	})
	repairRestored(t, ips, client)
}

// TestClusterIPs_FirstRepairIsTriedAgain: an error of the API does not end the repair, and with it the server.
func TestClusterIPs_FirstRepairIsTriedAgain(t *testing.T) {
	ips, client := newClusterIPs(t, "10.9.0.0/24", "", restored())
	var failed atomic.Bool
	client.PrependReactor("create", "ipaddresses", func(clienttesting.Action) (bool, runtime.Object, error) {
		return !failed.Swap(true), nil, apierrors.NewTimeoutError("the database does not answer", 1)
	})
	repairRestored(t, ips, client)
}

// suspended returns an allocator whose informer has no Service until one is sent to the watcher, as in a server that
// was suspended, and the IPAddress of the Service restored.
func suspended(t *testing.T, there ...runtime.Object) (*registry.ClusterIPs, *fake.Clientset, *apiwatch.FakeWatcher) {
	t.Helper()
	client, services := newClient("10.9.0.0/24", "", append(there, &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: "10.9.0.77", UID: types.UID("2"), ResourceVersion: "7",
			CreationTimestamp: metav1.NewTime(time.Now().Add(-2 * time.Minute)),
			Labels: map[string]string{networkingv1.LabelIPAddressFamily: "IPv4",
				networkingv1.LabelManagedBy: ipallocator.ControllerName},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "default",
			Name: "restored"}},
	})...), apiwatch.NewFake()
	client.PrependReactor("list", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &corev1.ServiceList{}, nil
	})
	client.PrependWatchReactor("services", clienttesting.DefaultWatchReactor(services, nil))
	return startClusterIPs(t, client, "10.9.0.0/24", ""), client, services
}

// TestClusterIPs_RepairKeepsTheAddressOfALiveService: the repair does not delete the IPAddress of a Service that its
// informer does not have yet.
func TestClusterIPs_RepairKeepsTheAddressOfALiveService(t *testing.T) {
	ips, client, services := suspended(t, restored())
	arrive := sync.OnceFunc(func() { services.Add(restored()) })
	client.PrependReactor("get", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		arrive()
		return false, nil, nil
	})
	repairRestored(t, ips, client)
}

// TestClusterIPs_RepairDeletesTheAddressThatItHasRead: the repair deletes the IPAddress of a Service that does not
// exist, unless it has changed since.
func TestClusterIPs_RepairDeletesTheAddressThatItHasRead(t *testing.T) {
	ips, client, _ := suspended(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ips.Repair(ctx, cancel)
	for _, action := range client.Actions() {
		if d, ok := action.(clienttesting.DeleteActionImpl); ok {
			if p := d.DeleteOptions.Preconditions; p == nil || *p.UID != "2" || *p.ResourceVersion != "7" {
				t.Errorf("preconditions %+v", p)
			}
			return
		}
	}
	t.Error("the IPAddress is not deleted")
}

// serve runs a store and its feed over a driver until the test ends, as one server does,
// and returns the options that its registries would get.
func serve(t *testing.T, driver sqlstore.Driver) generic.RESTOptionsGetter {
	t.Helper()
	store, feed := dbtest.RunStore(t, driver, watch.Options{})
	return storage.NewRESTOptionsGetter(storage.Backend{Store: store, Feed: feed},
		storage.BuiltinResources(compatibility.DefaultBuildEffectiveVersion()))
}

// newOptions returns the options of a server over a database of its own.
func newOptions(t *testing.T) generic.RESTOptionsGetter {
	t.Helper()
	return serve(t, storetest.NewModel())
}
