package bootstrap

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ensureNamespaces creates the system namespaces that are missing: those that every cluster has.
func (b *Bootstrap) ensureNamespaces(ctx context.Context) error {
	var failed []error
	for _, name := range []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, metav1.NamespaceDefault} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := createIfMissing(ctx, b.config.Client.CoreV1().Namespaces(), namespace); err != nil {
			failed = append(failed, fmt.Errorf("namespace %s: %w", name, err))
		}
	}
	return errors.Join(failed...)
}
