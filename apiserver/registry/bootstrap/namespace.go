package bootstrap

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// systemNamespaces returns the namespaces that every cluster has.
func systemNamespaces() []string {
	return []string{
		metav1.NamespaceSystem,
		metav1.NamespacePublic,
		corev1.NamespaceNodeLease,
		metav1.NamespaceDefault,
	}
}

// ensureNamespaces creates the system namespaces that are missing.
func (b *Bootstrap) ensureNamespaces(ctx context.Context) error {
	var failed []error
	for _, name := range systemNamespaces() {
		if err := b.ensureNamespace(ctx, name); err != nil {
			failed = append(failed, fmt.Errorf("namespace %s: %w", name, err))
		}
	}
	return errors.Join(failed...)
}

func (b *Bootstrap) ensureNamespace(ctx context.Context, name string) error {
	namespaces := b.config.Client.CoreV1().Namespaces()
	_, err := namespaces.Get(ctx, name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	_, err = namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
