package registry_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/registry/core/service/portallocator"

	"byre/apiserver/registry"
)

var ports = utilnet.PortRange{Base: 30000, Size: 20}

func newNodePorts(
	t *testing.T, options generic.RESTOptionsGetter, ports utilnet.PortRange, client kubernetes.Interface,
) *registry.NodePorts {
	t.Helper()
	n, err := registry.NewNodePorts(options, ports, client)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// repair runs one repair.
func repair(t *testing.T, n *registry.NodePorts) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	repaired := false
	n.Repair(ctx, func() {
		repaired = true
		cancel()
	})
	if !repaired {
		t.Fatal("not repaired")
	}
}

func serviceWith(name string, port int32) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort,
			Ports: []corev1.ServicePort{{Port: 80, NodePort: port, Protocol: corev1.ProtocolTCP}}},
	}
}

func taken(n *registry.NodePorts) []int {
	var all []int
	n.Allocator.ForEach(func(port int) { all = append(all, port) })
	slices.Sort(all)
	return all
}

// TestNodePorts_AllocateNothingBeforeTheFirstRepair: before the first repair the allocator
// does not know which ports are in use.
func TestNodePorts_AllocateNothingBeforeTheFirstRepair(t *testing.T) {
	n := newNodePorts(t, newOptions(t), ports, fake.NewClientset())
	if port, err := n.Allocator.AllocateNext(); err == nil {
		t.Errorf("allocated %d", port)
	}
	if err := n.Allocator.Allocate(30001); err == nil {
		t.Error("allocated 30001")
	}
	repair(t, n)
	if err := n.Allocator.Allocate(30001); err != nil {
		t.Error(err)
	}
}

// TestNodePorts_SurviveARestart: allocated ports stay allocated over a restart, and
// released ports stay free.
func TestNodePorts_SurviveARestart(t *testing.T) {
	options := newOptions(t)
	client := fake.NewClientset()
	first := newNodePorts(t, options, ports, client)
	repair(t, first)
	for _, port := range []int{30001, 30002, 30003} {
		if err := first.Allocator.Allocate(port); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Allocator.Release(30002); err != nil {
		t.Fatal(err)
	}
	second := newNodePorts(t, options, ports, client)
	if got := taken(second); !slices.Equal(got, []int{30001, 30003}) {
		t.Errorf("taken after a restart: %v", got)
	}
	if err := second.Allocator.Allocate(30001); !errors.Is(err, portallocator.ErrAllocated) {
		t.Errorf("a taken port: %v", err)
	}
	if err := second.Allocator.Allocate(30002); err != nil {
		t.Errorf("a released port: %v", err)
	}
}

// TestNodePorts_GiveEachPortOnce: the allocator gives out each port once; then the range is
// full.
func TestNodePorts_GiveEachPortOnce(t *testing.T) {
	n := newNodePorts(t, newOptions(t), ports, fake.NewClientset())
	repair(t, n)
	given := map[int]bool{}
	for range ports.Size {
		port, err := n.Allocator.AllocateNext()
		if err != nil {
			t.Fatal(err)
		}
		if given[port] || !ports.Contains(port) {
			t.Errorf("port %d given twice, or out of %s", port, ports)
		}
		given[port] = true
	}
	if port, err := n.Allocator.AllocateNext(); !errors.Is(err, portallocator.ErrFull) {
		t.Errorf("allocated %d of a full range: %v", port, err)
	}
	if free := n.Allocator.Free(); free != 0 {
		t.Errorf("%d free of a full range", free)
	}
	if err := n.Allocator.Release(30007); err != nil {
		t.Fatal(err)
	}
	if port, err := n.Allocator.AllocateNext(); port != 30007 || err != nil {
		t.Errorf("got %d, %v; want the port just released", port, err)
	}
}

// TestNodePorts_ConcurrentServersAllocateEachPortOnce: servers that allocate concurrently give
// out each port once.
func TestNodePorts_ConcurrentServersAllocateEachPortOnce(t *testing.T) {
	options := newOptions(t)
	client := fake.NewClientset()
	servers := []*registry.NodePorts{newNodePorts(t, options, ports, client), newNodePorts(t, options, ports, client)}
	repair(t, servers[0])
	var (
		mu    sync.Mutex
		given []int
		wg    sync.WaitGroup
	)
	for i := range ports.Size {
		wg.Go(func() {
			port, err := servers[i%len(servers)].Allocator.AllocateNext()
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			given = append(given, port)
		})
	}
	wg.Wait()
	slices.Sort(given)
	if once := slices.Compact(slices.Clone(given)); len(once) != ports.Size || len(given) != ports.Size {
		t.Errorf("given %v", given)
	}
}

// TestNodePorts_AreRepaired: a repair allocates the ports that Services use, whatever was
// stored. It frees an unused port only after several repairs have found it unused, because
// its Service may be about to be created.
func TestNodePorts_AreRepaired(t *testing.T) {
	options := newOptions(t)
	before := newNodePorts(t, options, ports, fake.NewClientset())
	repair(t, before)
	if err := before.Allocator.Allocate(30009); err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(serviceWith("a", 30004), serviceWith("b", 30005))
	after := newNodePorts(t, options, ports, client)
	repair(t, after)
	if got := taken(after); !slices.Equal(got, []int{30004, 30005, 30009}) {
		t.Errorf("taken after a repair: %v", got)
	}
}

// TestNodePorts_RepairAfterAChangeOfRange: after a change of the range, a repair adapts the
// stored state to it and keeps the ports of Services that lie in the range.
func TestNodePorts_RepairAfterAChangeOfRange(t *testing.T) {
	options := newOptions(t)
	client := fake.NewClientset(serviceWith("a", 30004))
	repair(t, newNodePorts(t, options, ports, client))
	wider := newNodePorts(t, options, utilnet.PortRange{Base: 30000, Size: 100}, client)
	if err := wider.Allocator.Allocate(30050); err == nil {
		t.Error("allocated before the repair to the new range")
	}
	repair(t, wider)
	if err := wider.Allocator.Allocate(30050); err != nil {
		t.Error(err)
	}
	if got := taken(wider); !slices.Equal(got, []int{30004, 30050}) {
		t.Errorf("taken: %v", got)
	}
}
