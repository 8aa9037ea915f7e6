package bootstrap

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
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
		b.config.Logger.Info("This server is not added to the endpoints of the kubernetes Service, because its address is not reachable from other hosts", "address", address)
		<-ctx.Done()
		return nil
	}
	adapter := reconcilers.NewEndpointsAdapter(b.config.Client.CoreV1(), b.config.Client.DiscoveryV1())
	p := &endpointPublisher{
		Bootstrap:  b,
		reconciler: reconcilers.NewLeaseEndpointReconciler(adapter, b.config.Leases),
		ports:      []corev1.EndpointPort{{Protocol: corev1.ProtocolTCP, Port: int32(b.config.Service.AdvertisePort), Name: portName}},
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
		b.config.Logger.Info("Could not remove this server from the endpoints of the kubernetes Service; its lease expires", "err", err)
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
	if storage.IsNotFound(err) {
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
