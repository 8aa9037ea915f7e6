package bootstrap

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
)

// bootstrapSelector selects the objects of upstream's bootstrap policy.
const bootstrapSelector = "kubernetes.io/bootstrapping=rbac-defaults"

// existingPolicy holds the existing objects of the bootstrap policy, read with four LIST
// requests instead of a GET for each of about two hundred objects. It lacks a role whose
// label an administrator has removed; creating that role fails with AlreadyExists, and
// the retry reads it.
type existingPolicy struct {
	roles    map[string]reconciliation.RuleOwner
	bindings map[string]reconciliation.RoleBinding
}

func (b *Bootstrap) listPolicy(ctx context.Context) (existingPolicy, error) {
	list := existingPolicy{roles: map[string]reconciliation.RuleOwner{}, bindings: map[string]reconciliation.RoleBinding{}}
	client, options := b.config.Client.RbacV1(), metav1.ListOptions{LabelSelector: bootstrapSelector}
	clusterRoles, err := client.ClusterRoles().List(ctx, options)
	if err != nil {
		return existingPolicy{}, err
	}
	for i := range clusterRoles.Items {
		list.addRole(reconciliation.ClusterRoleRuleOwner{ClusterRole: &clusterRoles.Items[i]})
	}
	roles, err := client.Roles(metav1.NamespaceAll).List(ctx, options)
	if err != nil {
		return existingPolicy{}, err
	}
	for i := range roles.Items {
		list.addRole(reconciliation.RoleRuleOwner{Role: &roles.Items[i]})
	}
	clusterBindings, err := client.ClusterRoleBindings().List(ctx, options)
	if err != nil {
		return existingPolicy{}, err
	}
	for i := range clusterBindings.Items {
		list.addBinding(reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &clusterBindings.Items[i]})
	}
	bindings, err := client.RoleBindings(metav1.NamespaceAll).List(ctx, options)
	if err != nil {
		return existingPolicy{}, err
	}
	for i := range bindings.Items {
		list.addBinding(reconciliation.RoleBindingAdapter{RoleBinding: &bindings.Items[i]})
	}
	return list, nil
}

// addRole and addBinding take objects of both scopes: the key of a cluster-scoped
// object has an empty namespace.

func (l existingPolicy) addRole(role reconciliation.RuleOwner) {
	l.roles[role.GetNamespace()+"/"+role.GetName()] = role
}

func (l existingPolicy) addBinding(binding reconciliation.RoleBinding) {
	l.bindings[binding.GetNamespace()+"/"+binding.GetName()] = binding
}

// role returns the client for the reconciliation of one role.
func (l existingPolicy) role(role reconciliation.RuleOwner, client reconciliation.RuleOwnerModifier) *listedRole {
	return &listedRole{RuleOwnerModifier: client, listed: l.roles[role.GetNamespace()+"/"+role.GetName()]}
}

// binding returns the client for the reconciliation of one binding.
func (l existingPolicy) binding(binding reconciliation.RoleBinding, client reconciliation.RoleBindingModifier) *listedBinding {
	return &listedBinding{RoleBindingModifier: client, listed: l.bindings[binding.GetNamespace()+"/"+binding.GetName()]}
}

// listedRole is a client of one role. It answers the first Get from the list. A later Get
// follows a failed write and makes a request, because the role has changed.
type listedRole struct {
	reconciliation.RuleOwnerModifier
	listed     reconciliation.RuleOwner
	usedListed bool
}

func (l *listedRole) Get(namespace, name string) (reconciliation.RuleOwner, error) {
	if l.usedListed {
		return l.RuleOwnerModifier.Get(namespace, name)
	}
	l.usedListed = true
	if l.listed == nil {
		return nil, apierrors.NewNotFound(rbacv1.Resource("roles"), name)
	}
	return l.listed, nil
}

// listedBinding is to bindings what listedRole is to roles.
type listedBinding struct {
	reconciliation.RoleBindingModifier
	listed     reconciliation.RoleBinding
	usedListed bool
}

func (l *listedBinding) Get(namespace, name string) (reconciliation.RoleBinding, error) {
	if l.usedListed {
		return l.RoleBindingModifier.Get(namespace, name)
	}
	l.usedListed = true
	if l.listed == nil {
		return nil, apierrors.NewNotFound(rbacv1.Resource("rolebindings"), name)
	}
	return l.listed, nil
}
