package bootstrap

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"

	"byre/apiserver/storage"
)

// endpointsInterval is the time between two renewals of this server's lease. It must be
// shorter than LeaseTTL.
const endpointsInterval = 10 * time.Second

// PublishEndpoints adds this server to the endpoints of the Service default/kubernetes
// when it is ready, and removes it when ctx ends, before it returns. At the start it
// removes an entry of the same address that a killed server may have left, unless no
// other server is running.
func (b *Bootstrap) PublishEndpoints(ctx context.Context) error {
	address := b.config.Service.AdvertiseAddress
	if address == nil || address.IsLoopback() || address.IsUnspecified() {
		b.config.Logger.Info(
			"This server is not added to the endpoints of the kubernetes Service, because its address is not reachable from other hosts", "address", address)
		<-ctx.Done()
		return nil
	}
	adapter := reconcilers.NewEndpointsAdapter(b.config.Client.CoreV1(), b.config.Client.DiscoveryV1())
	p := &endpointPublisher{
		Bootstrap:  b,
		reconciler: reconcilers.NewLeaseEndpointReconciler(adapter, b.config.Leases),
		ports: []corev1.EndpointPort{{Protocol: corev1.ProtocolTCP, Port: int32(b.config.Service.AdvertisePort),
			Name: portName}},
	}
	defer p.reconciler.Destroy()
	// As in kube-apiserver, a failure is not retried. Without another running
	// server the reconciler leaves the endpoints as they are.
	if err := p.remove(); err != nil {
		b.config.Logger.V(2).Info("Could not remove an old entry from the endpoints of the kubernetes Service", "err", err)
	}
	select {
	case <-ctx.Done():
		return nil
	case <-b.config.Ready:
	}
	p.renew(ctx)
	p.reconciler.StopReconciling()
	if err := p.remove(); err != nil {
		b.config.Logger.Info("Could not remove this server from the endpoints of the kubernetes Service; its lease expires",
			"err", err)
	}
	return nil
}

// endpointPublisher is the state of PublishEndpoints.
type endpointPublisher struct {
	*Bootstrap
	reconciler reconcilers.EndpointReconciler
	ports      []corev1.EndpointPort
}

// remove removes this server from the endpoints. It is not an error if it is not there.
func (p *endpointPublisher) remove() error {
	err := p.reconciler.RemoveEndpoints(serviceName, p.config.Service.AdvertiseAddress, p.ports)
	if apistorage.IsNotFound(err) {
		return nil
	}
	return err
}

// renew renews this server's lease and reconciles the endpoints with the leases of all
// running servers until ctx ends.
func (p *endpointPublisher) renew(ctx context.Context) {
	// The ports are reconciled once, because an earlier start of this server may
	// have had another port. Replicas with different ports would overwrite each
	// other if each reconciled the ports in every round.
	reconcilePorts := true
	retry := minRetryDelay
	isReported := false // whether the failures since the last success have been logged
	for wait := time.Duration(0); p.sleep(ctx, wait); {
		err := p.reconciler.ReconcileEndpoints(serviceName, p.config.Service.AdvertiseAddress, p.ports, reconcilePorts)
		if err == nil {
			reconcilePorts, retry, wait, isReported = false, minRetryDelay, endpointsInterval, false
			continue
		}
		if !isReported {
			p.report(err, "bootstrap-controller", retry)
			isReported = retry == maxRetryDelay
		}
		wait, retry = retry, min(2*retry, maxRetryDelay)
	}
}

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
	storage apistorage.Interface
	prefix  string
}

// NewStoredLeases returns leases for servers that share a database. They are stored in
// the storage that options returns for the resource apiserveripinfo.
func NewStoredLeases(options generic.RESTOptionsGetter) (reconcilers.Leases, error) {
	store, prefix, err := storage.NewRawStorage(options, api.Resource("apiserveripinfo"),
		func() runtime.Object { return &api.Endpoints{} })
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
	err := s.storage.GetList(ctx, s.prefix, apistorage.ListOptions{Predicate: apistorage.Everything, Recursive: true},
		list)
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
	renew := func(input runtime.Object, _ apistorage.ResponseMeta) (runtime.Object, *uint64, error) {
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
	return s.storage.Delete(ctx, s.prefix+ip, &api.Endpoints{}, nil, rest.ValidateAllObjectFunc, nil,
		apistorage.DeleteOptions{})
}

// Destroy does nothing, because storedLeases does not own the storage.
func (*storedLeases) Destroy() {}
