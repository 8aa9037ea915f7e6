package status

import (
	"encoding/json"
	"fmt"
	"math/big"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	netutils "k8s.io/utils/net"

	"byre/sqlstore"
)

// allocations are the cluster IPs and node ports that Services use, and those that the
// allocators have allocated. A running server repairs differences every few minutes
// (upstream's repair controllers), so a difference may be a Service that is being
// created.
type allocations struct {
	ips       map[string]string // Services by cluster IP
	ports     map[int]string    // Services by node port
	addresses map[string]string // Services by IPAddress
	allocated *big.Int          // node ports, as a bitmap; nil if none is stored
	base      int
}

type reporter func(row, reason string, arguments ...any)

// add records an object of a resource that takes part in allocations, and ignores
// others.
func (a *allocations) add(k sqlstore.Key, value []byte, report reporter) {
	var err error
	if k.Owner != sqlstore.BuiltIn {
		return
	}
	switch k.Group + "/" + k.Resource {
	case "/services":
		err = a.addService(k, value, report)
	case "networking.k8s.io/ipaddresses":
		err = a.addAddress(k, value)
	case "/servicenodeportallocations":
		err = a.addPorts(value)
	}
	if err != nil {
		report("objects: "+k.Display(), "its value does not decode: %v", err)
	}
}

func (a *allocations) addService(k sqlstore.Key, value []byte, report reporter) error {
	var service corev1.Service
	if err := json.Unmarshal(value, &service); err != nil {
		return err
	}
	name := k.Namespace + "/" + k.Name
	ips := service.Spec.ClusterIPs
	if len(ips) == 0 { // stored before Kubernetes 1.20
		ips = []string{service.Spec.ClusterIP}
	}
	for _, ip := range ips {
		if ip == "" || ip == "None" {
			continue
		}
		if parsed := netutils.ParseIPSloppy(ip); parsed != nil {
			ip = parsed.String() // the name of its IPAddress
		}
		if other, taken := a.ips[ip]; taken {
			report("objects: "+k.Display(), "has the cluster IP %s of Service %s", ip, other)
		}
		a.ips[ip] = name
	}
	ports := []int32{service.Spec.HealthCheckNodePort}
	for _, port := range service.Spec.Ports {
		ports = append(ports, port.NodePort)
	}
	for _, port := range ports {
		// Several ports of one Service may have the same number, with different
		// protocols.
		if other, taken := a.ports[int(port)]; taken && other != name {
			report("objects: "+k.Display(), "has the node port %d of Service %s", port, other)
		}
		if port != 0 {
			a.ports[int(port)] = name
		}
	}
	return nil
}

func (a *allocations) addAddress(k sqlstore.Key, value []byte) error {
	var address networkingv1.IPAddress
	if err := json.Unmarshal(value, &address); err != nil {
		return err
	}
	if parent := address.Spec.ParentRef; parent != nil && parent.Group == "" && parent.Resource == "services" {
		a.addresses[k.Name] = parent.Namespace + "/" + parent.Name
	}
	return nil
}

func (a *allocations) addPorts(value []byte) error {
	var allocation corev1.RangeAllocation
	if err := json.Unmarshal(value, &allocation); err != nil {
		return err
	}
	ports, err := utilnet.ParsePortRange(allocation.Range)
	if err != nil {
		return err
	}
	a.base, a.allocated = ports.Base, new(big.Int).SetBytes(allocation.Data)
	if a.allocated.BitLen() > ports.Size {
		return fmt.Errorf("the bitmap has %d bits, the range %d ports", a.allocated.BitLen(), ports.Size)
	}
	return nil
}

// compare reports the differences between Services and allocators.
func (a *allocations) compare(report reporter) {
	for ip, service := range a.ips {
		switch owner, allocated := a.addresses[ip]; {
		case !allocated:
			report("objects: services "+service, "has the cluster IP %s, for which there is no IPAddress", ip)
		case owner != service:
			report("objects: ipaddresses.networking.k8s.io "+ip, "belongs to Service %s, but Service %s has the IP", owner, service)
		}
	}
	for ip, owner := range a.addresses {
		if _, used := a.ips[ip]; !used {
			report("objects: ipaddresses.networking.k8s.io "+ip, "belongs to Service %s, which does not have the IP", owner)
		}
	}
	if a.allocated == nil {
		return
	}
	for port, service := range a.ports {
		if bit := port - a.base; bit < 0 || a.allocated.Bit(bit) == 0 {
			report("objects: services "+service, "has the node port %d, which is not allocated", port)
		}
	}
	var leaked []int
	for bit := range a.allocated.BitLen() {
		if _, used := a.ports[a.base+bit]; a.allocated.Bit(bit) == 1 && !used {
			leaked = append(leaked, a.base+bit)
		}
	}
	if slices.Sort(leaked); len(leaked) > 0 {
		report("objects: servicenodeportallocations", "node ports are allocated that no Service has: %v", leaked)
	}
}
