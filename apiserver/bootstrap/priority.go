package bootstrap

import (
	"context"
	"fmt"

	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
)

// ensurePriorityClasses creates the system priority classes that are missing.
func (b *Bootstrap) ensurePriorityClasses(ctx context.Context) error {
	for _, class := range schedulingv1.SystemPriorityClasses() {
		if err := createIfMissing(ctx, b.config.Client.SchedulingV1().PriorityClasses(), class); err != nil {
			return fmt.Errorf("priority class %s: %w", class.Name, err)
		}
	}
	return nil
}
