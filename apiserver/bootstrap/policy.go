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

	"byre/apiserver/process/pki"
)

// policyWorkers is the number of roles and bindings that are reconciled concurrently.
// Concurrent writes share a commit, and so its fsync.
const policyWorkers = 32

// ensurePolicy creates the roles and bindings of upstream's bootstrap policy and adds
// missing rules and subjects to existing ones, except to those annotated
// rbac.authorization.kubernetes.io/autoupdate=false. It is the reconciliation of
// upstream's pkg/registry/rbac/rest/storage_rbac.go, done concurrently, but for what that does with clusters
// older than Kubernetes 1.14, of which byre can't have the objects.
func (b *Bootstrap) ensurePolicy(ctx context.Context) error {
	client, namespaces := b.config.Client.RbacV1(), b.config.Client.CoreV1().Namespaces()
	clusterRoles := reconciliation.ClusterRoleModifier{Client: client.ClusterRoles()}
	clusterBindings := reconciliation.ClusterRoleBindingClientAdapter{Client: client.ClusterRoleBindings()}
	namespaceRoles := reconciliation.RoleModifier{Client: client, NamespaceClient: namespaces}
	namespaceBindings := reconciliation.RoleBindingClientAdapter{Client: client, NamespaceClient: namespaces}

	// Not errgroup.WithContext: one failure must not cancel the others.
	var group errgroup.Group
	group.SetLimit(policyWorkers)
	reconcileRole := func(role reconciliation.RuleOwner, client reconciliation.RuleOwnerModifier) {
		options := reconciliation.ReconcileRoleOptions{Role: role, Client: client, Confirm: true}
		group.Go(func() error { return b.reconcileRole(ctx, options) })
	}
	reconcileBinding := func(binding reconciliation.RoleBinding, client reconciliation.RoleBindingModifier) {
		options := reconciliation.ReconcileRoleBindingOptions{RoleBinding: binding, Client: client, Confirm: true}
		group.Go(func() error { return b.reconcileBinding(ctx, options) })
	}
	for _, role := range slices.Concat(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles(), ownRoles()) {
		reconcileRole(reconciliation.ClusterRoleRuleOwner{ClusterRole: &role}, clusterRoles)
	}
	for _, binding := range slices.Concat(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings(),
		ownBindings()) {
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

// ownRoles are there to be bound: nobody has them.
func ownRoles() []rbacv1.ClusterRole {
	return []rbacv1.ClusterRole{{
		ObjectMeta: ownMeta("byre:history-viewer"),
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"history.byre.dev"}, Resources: []string{"changes"},
			Verbs: []string{"get", "list", "watch"}}},
	}, {
		ObjectMeta: ownMeta("byre:console-user"),
		Rules:      []rbacv1.PolicyRule{{NonResourceURLs: []string{"/console", "/console/*"}, Verbs: []string{"get"}}},
	}, {
		ObjectMeta: ownMeta("byre:sql-user"),
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"sql.byre.dev"}, Resources: []string{"queries"},
			Verbs: []string{"create"}}},
	}}
}

// ownMeta marks an object of the bootstrap policy.
func ownMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:        name,
		Labels:      map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
}

// ownBindings give their rights to the group of admin.kubeconfig and to the client of kubelets,
// as kubeadm does.
func ownBindings() []rbacv1.ClusterRoleBinding {
	bind := func(name, role, kind, subject string) rbacv1.ClusterRoleBinding {
		return rbacv1.ClusterRoleBinding{
			ObjectMeta: ownMeta(name),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: kind, Name: subject}},
		}
	}
	return []rbacv1.ClusterRoleBinding{
		bind(pki.ClusterAdmins, "cluster-admin", rbacv1.GroupKind, pki.ClusterAdmins),
		bind("kubeadm:apiserver-kubelet-client", "system:kubelet-api-admin", rbacv1.UserKind, pki.KubeletClientName),
	}
}

func (b *Bootstrap) reconcileRole(ctx context.Context, o reconciliation.ReconcileRoleOptions) error {
	of := o.Role
	return b.reconcile(ctx, of.GetNamespace(), of.GetName(), func() (bool, reconciliation.ReconcileOperation, error) {
		result, err := o.Run()
		if err != nil {
			return false, "", err
		}
		return result.Protected, result.Operation, nil
	})
}

func (b *Bootstrap) reconcileBinding(ctx context.Context, o reconciliation.ReconcileRoleBindingOptions) error {
	of := o.RoleBinding
	return b.reconcile(ctx, of.GetNamespace(), of.GetName(), func() (bool, reconciliation.ReconcileOperation, error) {
		result, err := o.Run()
		if err != nil {
			return false, "", err
		}
		return result.Protected, result.Operation, nil
	})
}

// reconcile calls run, and calls it again if a concurrent write of another replica made
// it fail.
func (b *Bootstrap) reconcile(
	ctx context.Context, namespace, name string,
	run func() (protected bool, did reconciliation.ReconcileOperation, err error),
) error {
	if err := ctx.Err(); err != nil {
		return err // upstream's reconciliation takes no context
	}
	isRetriable := func(err error) bool {
		return ctx.Err() == nil &&
			(apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsServiceUnavailable(err))
	}
	err := retry.OnError(retry.DefaultBackoff, isRetriable, func() error {
		protected, did, err := run()
		switch {
		case err != nil:
			return err
		case did == reconciliation.ReconcileNone:
		case protected:
			b.config.Logger.Info("Did not change a protected object of the RBAC bootstrap policy", "namespace", namespace,
				"name", name)
		default:
			b.config.Logger.V(4).Info("Reconciled an object of the RBAC bootstrap policy", "namespace", namespace, "name", name,
				"operation", did)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("reconcile %s/%s: %w", namespace, name, err)
	}
	return nil
}
