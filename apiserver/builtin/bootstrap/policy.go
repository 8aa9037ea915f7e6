package bootstrap

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// policyWorkers make roles and bindings at the same time: one write's wait for
// the disk is then shared by all that are under way.
const policyWorkers = 32

// ensurePolicy makes the roles and bindings of upstream's policy, and adds what
// an existing one lacks, unless it is annotated against that. It is upstream's
// reconciliation (pkg/registry/rbac/rest/storage_rbac.go), done concurrently.
func (b *Bootstrap) ensurePolicy(ctx context.Context) error {
	if err := b.primeAggregated(ctx); err != nil {
		return err
	}
	if err := b.primeSplit(ctx); err != nil {
		return err
	}
	// Not errgroup.WithContext: one failure must not keep the others from being made.
	var group errgroup.Group
	group.SetLimit(policyWorkers)
	for _, role := range slices.Concat(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()) {
		group.Go(func() error { return b.reconcileClusterRole(ctx, &role) })
	}
	for _, binding := range slices.Concat(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()) {
		group.Go(func() error { return b.reconcileClusterRoleBinding(ctx, &binding) })
	}
	for _, roles := range bootstrappolicy.NamespaceRoles() {
		for _, role := range roles {
			group.Go(func() error { return b.reconcileRole(ctx, &role) })
		}
	}
	for _, bindings := range bootstrappolicy.NamespaceRoleBindings() {
		for _, binding := range bindings {
			group.Go(func() error { return b.reconcileRoleBinding(ctx, &binding) })
		}
	}
	return group.Wait()
}

func (b *Bootstrap) reconcileClusterRole(ctx context.Context, role *rbacv1.ClusterRole) error {
	options := reconciliation.ReconcileRoleOptions{
		Role:    reconciliation.ClusterRoleRuleOwner{ClusterRole: role},
		Client:  reconciliation.ClusterRoleModifier{Client: b.config.Client.RbacV1().ClusterRoles()},
		Confirm: true,
	}
	return b.reconcileRoleWith(ctx, "clusterrole", role.Name, options)
}

func (b *Bootstrap) reconcileRole(ctx context.Context, role *rbacv1.Role) error {
	options := reconciliation.ReconcileRoleOptions{
		Role:    reconciliation.RoleRuleOwner{Role: role},
		Client:  reconciliation.RoleModifier{Client: b.config.Client.RbacV1(), NamespaceClient: b.config.Client.CoreV1().Namespaces()},
		Confirm: true,
	}
	return b.reconcileRoleWith(ctx, "role", role.Namespace+"/"+role.Name, options)
}

func (b *Bootstrap) reconcileClusterRoleBinding(ctx context.Context, binding *rbacv1.ClusterRoleBinding) error {
	options := reconciliation.ReconcileRoleBindingOptions{
		RoleBinding: reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: binding},
		Client:      reconciliation.ClusterRoleBindingClientAdapter{Client: b.config.Client.RbacV1().ClusterRoleBindings()},
		Confirm:     true,
	}
	return b.reconcileBindingWith(ctx, "clusterrolebinding", binding.Name, options)
}

func (b *Bootstrap) reconcileRoleBinding(ctx context.Context, binding *rbacv1.RoleBinding) error {
	options := reconciliation.ReconcileRoleBindingOptions{
		RoleBinding: reconciliation.RoleBindingAdapter{RoleBinding: binding},
		Client:      reconciliation.RoleBindingClientAdapter{Client: b.config.Client.RbacV1(), NamespaceClient: b.config.Client.CoreV1().Namespaces()},
		Confirm:     true,
	}
	return b.reconcileBindingWith(ctx, "rolebinding", binding.Namespace+"/"+binding.Name, options)
}

func (b *Bootstrap) reconcileRoleWith(ctx context.Context, kind, name string, options reconciliation.ReconcileRoleOptions) error {
	return b.reconcile(ctx, kind, name, func() error {
		result, err := options.Run()
		if err == nil {
			b.logReconciled(kind, name, result.Protected, result.Operation)
		}
		return err
	})
}

func (b *Bootstrap) reconcileBindingWith(ctx context.Context, kind, name string, options reconciliation.ReconcileRoleBindingOptions) error {
	return b.reconcile(ctx, kind, name, func() error {
		result, err := options.Run()
		if err == nil {
			b.logReconciled(kind, name, result.Protected, result.Operation)
		}
		return err
	})
}

// reconcile tries again what another replica, doing the same, came in the way of.
func (b *Bootstrap) reconcile(ctx context.Context, kind, name string, run func() error) error {
	if err := ctx.Err(); err != nil {
		return err // upstream's reconciliation takes no context
	}
	err := retry.OnError(retry.DefaultBackoff, func(err error) bool {
		return ctx.Err() == nil &&
			(apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsServiceUnavailable(err))
	}, run)
	if err != nil {
		return fmt.Errorf("reconcile %s %s: %w", kind, name, err)
	}
	return nil
}

func (b *Bootstrap) logReconciled(kind, name string, protected bool, operation reconciliation.ReconcileOperation) {
	switch {
	case operation == reconciliation.ReconcileNone:
	case protected:
		b.config.Logger.Info("Left a part of the RBAC policy as it is: it is protected", "kind", kind, "name", name)
	default:
		b.config.Logger.V(2).Info("Reconciled a part of the RBAC policy", "kind", kind, "name", name, "operation", operation)
	}
}

// primeAggregated copies roles that became aggregates of others, so that what
// was added to them in an old cluster isn't lost.
func (b *Bootstrap) primeAggregated(ctx context.Context) error {
	client := b.config.Client.RbacV1().ClusterRoles()
	for oldName, newName := range bootstrappolicy.ClusterRolesToAggregate() {
		_, err := client.Get(ctx, newName, metav1.GetOptions{})
		if err == nil {
			continue
		}
		if !apierrors.IsNotFound(err) {
			return err
		}
		role, err := client.Get(ctx, oldName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && role.AggregationRule != nil {
			continue
		}
		if err != nil {
			return err
		}
		role.Name, role.ResourceVersion = newName, ""
		if _, err := client.Create(ctx, role, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

// primeSplit gives a binding that was split off another one the other's subjects.
func (b *Bootstrap) primeSplit(ctx context.Context) error {
	client := b.config.Client.RbacV1().ClusterRoleBindings()
	for oldName, template := range bootstrappolicy.ClusterRoleBindingsToSplit() {
		old, err := client.Get(ctx, oldName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		_, err = client.Get(ctx, template.Name, metav1.GetOptions{})
		if err == nil {
			continue
		}
		if !apierrors.IsNotFound(err) {
			return err
		}
		split := template.DeepCopy()
		split.Subjects, split.Labels, split.Annotations = old.Subjects, old.Labels, old.Annotations
		if _, err := client.Create(ctx, split, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}
