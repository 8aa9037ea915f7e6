package bootstrap

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
)

const (
	// serviceName is the name of the Service, in the namespace default.
	serviceName = "kubernetes"
	// portName is the name of its port.
	portName = "https"
	// endpointsInterval is between two renewals of this server's entry among the
	// replicas, which must be shorter than the entries live.
	endpointsInterval = 10 * time.Second
)

// ensureService makes the kubernetes Service when it is missing; one that exists
// stays as it is.
func (b *Bootstrap) ensureService(ctx context.Context) error {
	services := b.config.Client.CoreV1().Services(metav1.NamespaceDefault)
	_, err := services.Get(ctx, serviceName, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	_, err = services.Create(ctx, b.service(), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (b *Bootstrap) service() *corev1.Service {
	singleStack := corev1.IPFamilyPolicySingleStack
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name:      serviceName,
			Namespace: metav1.NamespaceDefault,
			Labels:    map[string]string{"provider": "kubernetes", "component": "apiserver"},
		},
		Spec: corev1.ServiceSpec{
			Ports: []corev1.ServicePort{{
				Protocol:   corev1.ProtocolTCP,
				Port:       int32(b.config.Service.Port),
				Name:       portName,
				TargetPort: intstr.FromInt32(int32(b.config.Service.AdvertisePort)),
			}},
			// No selector: the endpoints are the servers, not pods.
			ClusterIP:       b.config.Service.ClusterIP.String(),
			IPFamilyPolicy:  &singleStack,
			SessionAffinity: corev1.ServiceAffinityNone,
			Type:            corev1.ServiceTypeClusterIP,
		},
	}
	if b.config.Service.NodePort > 0 {
		service.Spec.Type = corev1.ServiceTypeNodePort
		service.Spec.Ports[0].NodePort = int32(b.config.Service.NodePort)
	}
	return service
}

// keepEndpoints puts this server among the endpoints of the Service once it
// serves, keeps them in line with the replicas that are up, and takes it out when
// ctx ends.
func (b *Bootstrap) keepEndpoints(ctx context.Context) {
	address := b.config.Service.AdvertiseAddress
	if address == nil || address.IsLoopback() || address.IsUnspecified() {
		b.config.Logger.Info("The kubernetes Service has no endpoint of this server: its address can't be reached from elsewhere", "address", address)
		return
	}
	select {
	case <-b.config.Serving:
	case <-ctx.Done():
		return
	}
	adapter := reconcilers.NewEndpointsAdapter(b.config.Client.CoreV1(), b.config.Client.DiscoveryV1())
	reconciler := reconcilers.NewLeaseEndpointReconciler(adapter, b.config.Replicas)
	defer reconciler.Destroy()
	ports := []corev1.EndpointPort{{Protocol: corev1.ProtocolTCP, Port: int32(b.config.Service.AdvertisePort), Name: portName}}

	// The port may be another than that of the server that was here before, so
	// it is put right once; replicas that always did so would fight over it.
	reconcilePorts := true
	retry := firstRetry
	for wait := time.Duration(0); b.sleep(ctx, wait); {
		err := reconciler.ReconcileEndpoints(serviceName, address, ports, reconcilePorts)
		if err == nil {
			reconcilePorts, retry, wait = false, firstRetry, endpointsInterval
			continue
		}
		b.report(err, "bootstrap-controller", retry)
		wait, retry = retry, min(2*retry, lastRetry)
	}
	reconciler.StopReconciling()
	if err := reconciler.RemoveEndpoints(serviceName, address, ports); err != nil && !storage.IsNotFound(err) {
		b.config.Logger.Info("Could not take this server out of the kubernetes Service; its entry expires", "err", err)
	}
}
