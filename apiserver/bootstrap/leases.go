package bootstrap

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"

	factory "byre/apiserver/storage"
)

// LeaseTTL is the lifetime of a server's lease without renewal: how long a server that is gone
// stays among the endpoints. It is kube-apiserver's (DefaultEndpointReconcilerTTL).
const LeaseTTL = 15 * time.Second

// storageTimeout bounds one access to the storage. The interface reconcilers.Leases
// passes no context.
const storageTimeout = 10 * time.Second

// singleServerLeases implements reconcilers.Leases in memory, for a server that shares
// its database with no other server. It has the address of this server while that has a lease.
// Only PublishEndpoints uses it.
type singleServerLeases struct{ ips []string }

func (s *singleServerLeases) ListLeases() ([]string, error) { return s.ips, nil }

func (s *singleServerLeases) UpdateLease(ip string) error {
	s.ips = []string{ip}
	return nil
}

func (s *singleServerLeases) RemoveLease(string) error {
	s.ips = nil
	return nil
}

func (*singleServerLeases) Destroy() {}

// storedLeases implements reconcilers.Leases with one stored object per server, which
// expires unless it is renewed. kube-apiserver stores objects of the same type under
// /masterleases.
type storedLeases struct {
	storage storage.Interface
	prefix  string
}

// NewStoredLeases returns leases for servers that share a database. They are stored in
// the storage that options returns for the resource apiserveripinfo.
func NewStoredLeases(options generic.RESTOptionsGetter) (reconcilers.Leases, error) {
	store, prefix, err := factory.NewRawStorage(options, api.Resource("apiserveripinfo"),
		func() runtime.Object { return &api.Endpoints{} }, func() runtime.Object { return &api.EndpointsList{} })
	if err != nil {
		return nil, err
	}
	return &storedLeases{storage: store, prefix: prefix + "/"}, nil
}

// ListLeases returns the addresses of the servers whose leases have not expired.
func (s *storedLeases) ListLeases() ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), storageTimeout)
	defer cancel()
	list := &api.EndpointsList{}
	err := s.storage.GetList(ctx, s.prefix, storage.ListOptions{Predicate: storage.Everything, Recursive: true}, list)
	if err != nil {
		return nil, err
	}
	var ips []string
	for _, entry := range list.Items {
		if len(entry.Subsets) > 0 && len(entry.Subsets[0].Addresses) > 0 {
			ips = append(ips, entry.Subsets[0].Addresses[0].IP)
		}
	}
	return ips, nil
}

// UpdateLease creates or renews the lease of a server.
func (s *storedLeases) UpdateLease(ip string) error {
	ctx, cancel := context.WithTimeout(context.Background(), storageTimeout)
	defer cancel()
	ttl := uint64(LeaseTTL / time.Second)
	renew := func(input runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		entry := input.(*api.Endpoints)
		entry.Name = ip
		entry.Subsets = []api.EndpointSubset{{Addresses: []api.EndpointAddress{{IP: ip}}}}
		// The storage skips an update that changes nothing, which would not renew
		// the lease.
		entry.Generation++
		return entry, &ttl, nil
	}
	return s.storage.GuaranteedUpdate(ctx, s.prefix+ip, &api.Endpoints{}, true, nil, renew, nil)
}

// RemoveLease deletes the lease of a server.
func (s *storedLeases) RemoveLease(ip string) error {
	ctx, cancel := context.WithTimeout(context.Background(), storageTimeout)
	defer cancel()
	return s.storage.Delete(ctx, s.prefix+ip, &api.Endpoints{}, nil, rest.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
}

// Destroy does nothing, because storedLeases does not own the storage.
func (*storedLeases) Destroy() {}
