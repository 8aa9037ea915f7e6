package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
)

// ReplicaTTL is how long the entry of a server lives that doesn't renew it; it is
// upstream's.
const ReplicaTTL = 15 * time.Second

// storageTimeout bounds one access: the interface here carries no context.
const storageTimeout = 10 * time.Second

// soleReplica is for a server that shares its database with no other: nothing
// need be written to know who is up.
type soleReplica struct {
	mu sync.Mutex
	ip string
}

var _ reconcilers.Leases = (*soleReplica)(nil)

func (s *soleReplica) ListLeases() ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ip == "" {
		return nil, nil
	}
	return []string{s.ip}, nil
}

func (s *soleReplica) UpdateLease(ip string) error { return s.set(ip) }

func (s *soleReplica) RemoveLease(string) error { return s.set("") }

func (s *soleReplica) set(ip string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ip = ip
	return nil
}

func (*soleReplica) Destroy() {}

// storedReplicas keeps one entry a server, which expires unless it is renewed.
// The objects are of the type that upstream keeps under /masterleases.
type storedReplicas struct {
	storage storage.Interface
	prefix  string
	ttl     uint64
}

// StoredReplicas keeps the entries of several servers where options says that
// apiserveripinfo is kept. ttl is rounded down to seconds.
func StoredReplicas(options generic.RESTOptionsGetter, ttl time.Duration) (reconcilers.Leases, error) {
	gr := api.Resource("apiserveripinfo")
	opts, err := options.GetRESTOptions(gr, &api.Endpoints{})
	if err != nil {
		return nil, err
	}
	prefix := "/" + opts.ResourcePrefix
	store, _, err := opts.Decorator(opts.StorageConfig, prefix,
		func(runtime.Object) (string, error) {
			return "", errors.New("entries of servers have no keys of their own")
		},
		func() runtime.Object { return &api.Endpoints{} },
		func() runtime.Object { return &api.EndpointsList{} },
		storage.DefaultClusterScopedAttr, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("storage of %s: %w", gr, err)
	}
	return &storedReplicas{storage: store, prefix: prefix + "/", ttl: uint64(ttl / time.Second)}, nil
}

// ListLeases returns the addresses of the servers that are up.
func (s *storedReplicas) ListLeases() ([]string, error) {
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

// UpdateLease makes or renews the entry of a server.
func (s *storedReplicas) UpdateLease(ip string) error {
	ctx, cancel := context.WithTimeout(context.Background(), storageTimeout)
	defer cancel()
	renew := func(input runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		entry := input.(*api.Endpoints)
		entry.Name = ip
		entry.Subsets = []api.EndpointSubset{{Addresses: []api.EndpointAddress{{IP: ip}}}}
		// An update that changes nothing isn't written, and wouldn't renew.
		entry.Generation++
		return entry, &s.ttl, nil
	}
	return s.storage.GuaranteedUpdate(ctx, s.prefix+ip, &api.Endpoints{}, true, nil, renew, nil)
}

// RemoveLease removes the entry of a server.
func (s *storedReplicas) RemoveLease(ip string) error {
	ctx, cancel := context.WithTimeout(context.Background(), storageTimeout)
	defer cancel()
	return s.storage.Delete(ctx, s.prefix+ip, &api.Endpoints{}, nil, rest.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
}

// Destroy does nothing: the storage is its owner's.
func (*storedReplicas) Destroy() {}
