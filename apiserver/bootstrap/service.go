package bootstrap

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	// serviceName is the name of the Service in the namespace default.
	serviceName = "kubernetes"
	// portName is the name of the Service's port.
	portName = "https"
)

// ensureService creates the Service default/kubernetes if it is missing. It does not
// change an existing Service.
func (b *Bootstrap) ensureService(ctx context.Context) error {
	return createIfMissing(ctx, b.config.Client.CoreV1().Services(metav1.NamespaceDefault), b.service())
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
				Port:       443,
				Name:       portName,
				TargetPort: intstr.FromInt32(int32(b.config.Service.AdvertisePort)),
			}},
			// No selector: PublishEndpoints writes the endpoints.
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
