package bootstrap

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
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
	list, err := b.listPolicy(ctx)
	if err != nil {
		return fmt.Errorf("list the RBAC policy: %w", err)
	}
	client, namespaces := b.config.Client.RbacV1(), b.config.Client.CoreV1().Namespaces()
	clusterRoles := reconciliation.ClusterRoleModifier{Client: client.ClusterRoles()}
	clusterBindings := reconciliation.ClusterRoleBindingClientAdapter{Client: client.ClusterRoleBindings()}
	namespaceRoles := reconciliation.RoleModifier{Client: client, NamespaceClient: namespaces}
	namespaceBindings := reconciliation.RoleBindingClientAdapter{Client: client, NamespaceClient: namespaces}

	// Not errgroup.WithContext: one failure must not keep the others from being made.
	var group errgroup.Group
	group.SetLimit(policyWorkers)
	reconcileRole := func(role reconciliation.RuleOwner, client reconciliation.RuleOwnerModifier) {
		group.Go(func() error { return b.reconcileRole(ctx, role, list.role(role, client)) })
	}
	reconcileBinding := func(binding reconciliation.RoleBinding, client reconciliation.RoleBindingModifier) {
		group.Go(func() error { return b.reconcileBinding(ctx, binding, list.binding(binding, client)) })
	}
	for _, role := range slices.Concat(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()) {
		reconcileRole(reconciliation.ClusterRoleRuleOwner{ClusterRole: &role}, clusterRoles)
	}
	for _, binding := range slices.Concat(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()) {
		reconcileBinding(reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &binding}, clusterBindings)
	}
	for _, roles := range bootstrappolicy.NamespaceRoles() {
		for _, role := range roles {
			reconcileRole(reconciliation.RoleRuleOwner{Role: &role}, namespaceRoles)
		}
	}
	for _, bindings := range bootstrappolicy.NamespaceRoleBindings() {
		for _, binding := range bindings {
			reconcileBinding(reconciliation.RoleBindingAdapter{RoleBinding: &binding}, namespaceBindings)
		}
	}
	return group.Wait()
}

func (b *Bootstrap) reconcileRole(ctx context.Context, role reconciliation.RuleOwner, client reconciliation.RuleOwnerModifier) error {
	options := reconciliation.ReconcileRoleOptions{Role: role, Client: client, Confirm: true}
	return b.reconcile(ctx, role.GetNamespace(), role.GetName(), func() (bool, reconciliation.ReconcileOperation, error) {
		result, err := options.Run()
		if err != nil {
			return false, "", err
		}
		return result.Protected, result.Operation, nil
	})
}

func (b *Bootstrap) reconcileBinding(ctx context.Context, binding reconciliation.RoleBinding, client reconciliation.RoleBindingModifier) error {
	options := reconciliation.ReconcileRoleBindingOptions{RoleBinding: binding, Client: client, Confirm: true}
	return b.reconcile(ctx, binding.GetNamespace(), binding.GetName(), func() (bool, reconciliation.ReconcileOperation, error) {
		result, err := options.Run()
		if err != nil {
			return false, "", err
		}
		return result.Protected, result.Operation, nil
	})
}

// reconcile runs one reconciliation, and again what another replica, doing the
// same, came in the way of.
func (b *Bootstrap) reconcile(ctx context.Context, namespace, name string, run func() (protected bool, did reconciliation.ReconcileOperation, err error)) error {
	if err := ctx.Err(); err != nil {
		return err // upstream's reconciliation takes no context
	}
	again := func(err error) bool {
		return ctx.Err() == nil &&
			(apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsServiceUnavailable(err))
	}
	err := retry.OnError(retry.DefaultBackoff, again, func() error {
		protected, did, err := run()
		switch {
		case err != nil:
			return err
		case did == reconciliation.ReconcileNone:
		case protected:
			b.config.Logger.Info("Left a part of the RBAC policy as it is: it is protected", "namespace", namespace, "name", name)
		default:
			b.config.Logger.V(4).Info("Reconciled a part of the RBAC policy", "namespace", namespace, "name", name, "did", did)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("reconcile %s/%s: %w", namespace, name, err)
	}
	return nil
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
