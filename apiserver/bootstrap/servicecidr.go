package bootstrap

import (
	"context"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// defaultServiceCIDR is the name of the ServiceCIDR with the ranges of the flags.
const defaultServiceCIDR = "kubernetes"

// ensureServiceCIDR creates the default ServiceCIDR and sets its condition Ready. It
// follows upstream's defaultservicecidr controller: it changes an existing ServiceCIDR
// only from single-stack to dual-stack, and sets the condition only if it is missing or
// unknown, so that changes by an administrator stay.
func (b *Bootstrap) ensureServiceCIDR(ctx context.Context) error {
	client := b.config.Client.NetworkingV1().ServiceCIDRs()
	var want []string
	for _, cidr := range b.config.ServiceCIDRs {
		want = append(want, cidr.String())
	}
	current, err := client.Get(ctx, defaultServiceCIDR, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		current, err = client.Create(ctx, &networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: defaultServiceCIDR},
			Spec:       networkingv1.ServiceCIDRSpec{CIDRs: want},
		}, metav1.CreateOptions{})
	case err == nil && len(want) == 2 && slices.Equal(current.Spec.CIDRs, want[:1]):
		current = current.DeepCopy()
		current.Spec.CIDRs = want
		current, err = client.Update(ctx, current, metav1.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	return b.ensureServiceCIDRReady(ctx, current, want)
}

func (b *Bootstrap) ensureServiceCIDRReady(ctx context.Context, current *networkingv1.ServiceCIDR, want []string) error {
	if current.DeletionTimestamp != nil {
		return nil // kube-controller-manager completes the deletion
	}
	if cidrs := current.Spec.CIDRs; !slices.Equal(cidrs, want) {
		if !slices.Equal(cidrs, b.differentCIDRs) {
			b.config.Logger.Info("The default ServiceCIDR differs from the configured ranges and is not changed", "is", cidrs, "configured", want)
			b.differentCIDRs = cidrs
		}
		return nil
	}
	ready := meta.FindStatusCondition(current.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
	if ready != nil && ready.Status != metav1.ConditionUnknown {
		return nil
	}
	current = current.DeepCopy()
	meta.SetStatusCondition(&current.Status.Conditions, metav1.Condition{
		Type:    networkingv1.ServiceCIDRConditionReady,
		Status:  metav1.ConditionTrue,
		Message: "Kubernetes default Service CIDR is ready",
	})
	_, err := b.config.Client.NetworkingV1().ServiceCIDRs().UpdateStatus(ctx, current, metav1.UpdateOptions{})
	return err
}
