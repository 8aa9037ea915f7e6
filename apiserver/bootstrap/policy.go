package bootstrap

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
// upstream's pkg/registry/rbac/rest/storage_rbac.go, done concurrently.
func (b *Bootstrap) ensurePolicy(ctx context.Context) error {
	if err := b.primeAggregatedClusterRoles(ctx); err != nil {
		return err
	}
	if err := b.primeSplitClusterRoleBindings(ctx); err != nil {
		return err
	}
	existing, err := b.listPolicy(ctx)
	if err != nil {
		return fmt.Errorf("list the RBAC policy: %w", err)
	}
	client, namespaces := b.config.Client.RbacV1(), b.config.Client.CoreV1().Namespaces()
	clusterRoles := reconciliation.ClusterRoleModifier{Client: client.ClusterRoles()}
	clusterBindings := reconciliation.ClusterRoleBindingClientAdapter{Client: client.ClusterRoleBindings()}
	namespaceRoles := reconciliation.RoleModifier{Client: client, NamespaceClient: namespaces}
	namespaceBindings := reconciliation.RoleBindingClientAdapter{Client: client, NamespaceClient: namespaces}

	// Not errgroup.WithContext: one failure must not cancel the others.
	var group errgroup.Group
	group.SetLimit(policyWorkers)
	reconcileRole := func(role reconciliation.RuleOwner, client reconciliation.RuleOwnerModifier) {
		listed := &listedRole{client, firstListed[reconciliation.RuleOwner]{listed: existing.roles}}
		group.Go(func() error { return b.reconcileRole(ctx, role, listed) })
	}
	reconcileBinding := func(binding reconciliation.RoleBinding, client reconciliation.RoleBindingModifier) {
		listed := &listedBinding{client, firstListed[reconciliation.RoleBinding]{listed: existing.bindings}}
		group.Go(func() error { return b.reconcileBinding(ctx, binding, listed) })
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

func (b *Bootstrap) reconcileRole(
	ctx context.Context, role reconciliation.RuleOwner, client reconciliation.RuleOwnerModifier,
) error {
	options := reconciliation.ReconcileRoleOptions{Role: role, Client: client, Confirm: true}
	return b.reconcile(ctx, role.GetNamespace(), role.GetName(), func() (bool, reconciliation.ReconcileOperation, error) {
		result, err := options.Run()
		if err != nil {
			return false, "", err
		}
		return result.Protected, result.Operation, nil
	})
}

func (b *Bootstrap) reconcileBinding(
	ctx context.Context, binding reconciliation.RoleBinding, client reconciliation.RoleBindingModifier,
) error {
	options := reconciliation.ReconcileRoleBindingOptions{RoleBinding: binding, Client: client, Confirm: true}
	return b.reconcile(ctx, binding.GetNamespace(), binding.GetName(),
		func() (bool, reconciliation.ReconcileOperation, error) {
			result, err := options.Run()
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

// primeAggregatedClusterRoles copies a cluster role of an older release, which is now an
// aggregate, to the role that it aggregates. Rules that an administrator has added to
// the old role are thereby kept. Upstream has a function of the same name.
func (b *Bootstrap) primeAggregatedClusterRoles(ctx context.Context) error {
	client := b.config.Client.RbacV1().ClusterRoles()
	for oldName, newName := range bootstrappolicy.ClusterRolesToAggregate() {
		role, err := client.Get(ctx, oldName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && role.AggregationRule != nil {
			continue
		}
		if err != nil {
			return err
		}
		role.Name, role.ResourceVersion = newName, ""
		if err := createIfMissing(ctx, client, role); err != nil {
			return err
		}
	}
	return nil
}

// primeSplitClusterRoleBindings creates a binding that a release has split off another
// one, with the subjects of the other. Upstream has a function of the same name.
func (b *Bootstrap) primeSplitClusterRoleBindings(ctx context.Context) error {
	client := b.config.Client.RbacV1().ClusterRoleBindings()
	for oldName, template := range bootstrappolicy.ClusterRoleBindingsToSplit() {
		old, err := client.Get(ctx, oldName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		split := template.DeepCopy()
		split.Subjects, split.Labels, split.Annotations = old.Subjects, old.Labels, old.Annotations
		if err := createIfMissing(ctx, client, split); err != nil {
			return err
		}
	}
	return nil
}

// bootstrapSelector selects the objects of upstream's bootstrap policy.
const bootstrapSelector = "kubernetes.io/bootstrapping=rbac-defaults"

// existingPolicy holds the existing objects of the bootstrap policy by namespace, which is empty
// for cluster roles and their bindings, and name. They are read with four LIST
// requests instead of a GET for each of about two hundred objects: on PostgreSQL a later start
// is ready in 480 instead of 575 ms (means of five starts each); on SQLite no difference was
// measured. It lacks a role whose label an administrator has removed; creating that role fails
// with AlreadyExists, and the retry reads it.
type existingPolicy struct {
	roles    map[string]reconciliation.RuleOwner
	bindings map[string]reconciliation.RoleBinding
}

func (b *Bootstrap) listPolicy(ctx context.Context) (existingPolicy, error) {
	existing := existingPolicy{roles: map[string]reconciliation.RuleOwner{},
		bindings: map[string]reconciliation.RoleBinding{}}
	client, options := b.config.Client.RbacV1(), metav1.ListOptions{LabelSelector: bootstrapSelector}
	for _, list := range []func() (runtime.Object, error){
		func() (runtime.Object, error) { return client.ClusterRoles().List(ctx, options) },
		func() (runtime.Object, error) { return client.Roles(metav1.NamespaceAll).List(ctx, options) },
		func() (runtime.Object, error) { return client.ClusterRoleBindings().List(ctx, options) },
		func() (runtime.Object, error) { return client.RoleBindings(metav1.NamespaceAll).List(ctx, options) },
	} {
		objects, err := list()
		if err != nil {
			return existingPolicy{}, err
		}
		if err := meta.EachListItem(objects, existing.add); err != nil {
			return existingPolicy{}, err
		}
	}
	return existing, nil
}

func (p existingPolicy) add(object runtime.Object) error {
	switch o := object.(type) {
	case *rbacv1.ClusterRole:
		p.roles["/"+o.Name] = reconciliation.ClusterRoleRuleOwner{ClusterRole: o}
	case *rbacv1.Role:
		p.roles[o.Namespace+"/"+o.Name] = reconciliation.RoleRuleOwner{Role: o}
	case *rbacv1.ClusterRoleBinding:
		p.bindings["/"+o.Name] = reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: o}
	case *rbacv1.RoleBinding:
		p.bindings[o.Namespace+"/"+o.Name] = reconciliation.RoleBindingAdapter{RoleBinding: o}
	}
	return nil
}

// firstListed answers the first Get of an object from those that were listed. A later Get
// follows a failed write and makes a request, because the object has changed.
type firstListed[T any] struct {
	listed map[string]T
	isUsed bool
}

func (f *firstListed[T]) get(
	namespace, name string, request func(namespace, name string) (T, error),
) (object T, err error) {
	if f.isUsed {
		return request(namespace, name)
	}
	f.isUsed = true
	object, ok := f.listed[namespace+"/"+name]
	if !ok {
		err = apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName}, name)
	}
	return object, err
}

// listedRole is a client of one role.
type listedRole struct {
	reconciliation.RuleOwnerModifier
	first firstListed[reconciliation.RuleOwner]
}

func (l *listedRole) Get(namespace, name string) (reconciliation.RuleOwner, error) {
	return l.first.get(namespace, name, l.RuleOwnerModifier.Get)
}

// listedBinding is a client of one binding.
type listedBinding struct {
	reconciliation.RoleBindingModifier
	first firstListed[reconciliation.RoleBinding]
}

func (l *listedBinding) Get(namespace, name string) (reconciliation.RoleBinding, error) {
	return l.first.get(namespace, name, l.RoleBindingModifier.Get)
}
