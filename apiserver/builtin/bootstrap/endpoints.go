package bootstrap

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
)

// endpointsInterval is between two renewals of this server's entry among the
// replicas, which must be shorter than the entries live.
const endpointsInterval = 10 * time.Second

// Publish keeps this server among the endpoints of the kubernetes Service from
// when it is ready until ctx ends, and removes it before it returns. What a server
// at this address left there when it was killed is removed at once, if another server
// is up.
func (b *Bootstrap) Publish(ctx context.Context) error {
	address := b.config.Service.AdvertiseAddress
	if address == nil || address.IsLoopback() || address.IsUnspecified() {
		b.config.Logger.Info("The kubernetes Service has no endpoint of this server: its address can't be reached from elsewhere", "address", address)
		<-ctx.Done()
		return nil
	}
	adapter := reconcilers.NewEndpointsAdapter(b.config.Client.CoreV1(), b.config.Client.DiscoveryV1())
	p := &publisher{
		Bootstrap:  b,
		reconciler: reconcilers.NewLeaseEndpointReconciler(adapter, b.config.Replicas),
		ports:      []corev1.EndpointPort{{Protocol: corev1.ProtocolTCP, Port: int32(b.config.Service.AdvertisePort), Name: portName}},
	}
	defer p.reconciler.Destroy()
	// Once, as upstream: where nobody else is up, the endpoints are left as they are.
	if err := p.remove(); err != nil {
		b.config.Logger.V(2).Info("Left an old entry among the endpoints of the kubernetes Service", "err", err)
	}
	select {
	case <-ctx.Done():
		return nil
	case <-b.config.Ready:
	}
	p.renew(ctx)
	p.reconciler.StopReconciling()
	if err := p.remove(); err != nil {
		b.config.Logger.Info("Could not take this server out of the kubernetes Service; its entry expires", "err", err)
	}
	return nil
}

// publisher is the state of Publish.
type publisher struct {
	*Bootstrap
	reconciler reconcilers.EndpointReconciler
	ports      []corev1.EndpointPort
}

// remove takes this server out of the endpoints, if it is there.
func (p *publisher) remove() error {
	err := p.reconciler.RemoveEndpoints(serviceName, p.config.Service.AdvertiseAddress, p.ports)
	if storage.IsNotFound(err) {
		return nil
	}
	return err
}

// renew keeps the entry alive, and the endpoints in line with the replicas that are
// up, until ctx ends.
func (p *publisher) renew(ctx context.Context) {
	// The port may be another than that of the server that was here before, so
	// it is put right once; replicas that always did so would fight over it.
	reconcilePorts := true
	retry := firstRetry
	for wait := time.Duration(0); p.sleep(ctx, wait); {
		err := p.reconciler.ReconcileEndpoints(serviceName, p.config.Service.AdvertiseAddress, p.ports, reconcilePorts)
		if err == nil {
			reconcilePorts, retry, wait = false, firstRetry, endpointsInterval
			continue
		}
		p.report(err, "bootstrap-controller", retry)
		wait, retry = retry, min(2*retry, lastRetry)
	}
}
