package bootstrap

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
)

// ensurePriorityClasses creates the system priority classes that are missing.
func (b *Bootstrap) ensurePriorityClasses(ctx context.Context) error {
	classes := b.config.Client.SchedulingV1().PriorityClasses()
	for _, class := range schedulingv1.SystemPriorityClasses() {
		_, err := classes.Get(ctx, class.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = classes.Create(ctx, class, metav1.CreateOptions{})
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("priority class %s: %w", class.Name, err)
		}
	}
	return nil
}
