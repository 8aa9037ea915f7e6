package bootstrap

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
)

// ownPolicy selects what upstream's policy has labelled as its own.
const ownPolicy = "kubernetes.io/bootstrapping=rbac-defaults"

// policyList is what there is of the policy. Four lists make it, so that a start
// doesn't ask for each of two hundred objects; a role that has lost its label
// isn't in it, and is found when making it fails.
type policyList struct {
	roles    map[string]reconciliation.RuleOwner
	bindings map[string]reconciliation.RoleBinding
}

func (b *Bootstrap) listPolicy(ctx context.Context) (policyList, error) {
	list := policyList{roles: map[string]reconciliation.RuleOwner{}, bindings: map[string]reconciliation.RoleBinding{}}
	client, options := b.config.Client.RbacV1(), metav1.ListOptions{LabelSelector: ownPolicy}
	clusterRoles, err := client.ClusterRoles().List(ctx, options)
	if err != nil {
		return policyList{}, err
	}
	for i := range clusterRoles.Items {
		list.addRole(reconciliation.ClusterRoleRuleOwner{ClusterRole: &clusterRoles.Items[i]})
	}
	roles, err := client.Roles(metav1.NamespaceAll).List(ctx, options)
	if err != nil {
		return policyList{}, err
	}
	for i := range roles.Items {
		list.addRole(reconciliation.RoleRuleOwner{Role: &roles.Items[i]})
	}
	clusterBindings, err := client.ClusterRoleBindings().List(ctx, options)
	if err != nil {
		return policyList{}, err
	}
	for i := range clusterBindings.Items {
		list.addBinding(reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &clusterBindings.Items[i]})
	}
	bindings, err := client.RoleBindings(metav1.NamespaceAll).List(ctx, options)
	if err != nil {
		return policyList{}, err
	}
	for i := range bindings.Items {
		list.addBinding(reconciliation.RoleBindingAdapter{RoleBinding: &bindings.Items[i]})
	}
	return list, nil
}

// Cluster-wide objects have no namespace, so that one map holds both kinds.

func (l policyList) addRole(role reconciliation.RuleOwner) {
	l.roles[role.GetNamespace()+"/"+role.GetName()] = role
}

func (l policyList) addBinding(binding reconciliation.RoleBinding) {
	l.bindings[binding.GetNamespace()+"/"+binding.GetName()] = binding
}

// role makes the client of one role's reconciliation.
func (l policyList) role(role reconciliation.RuleOwner, client reconciliation.RuleOwnerModifier) *listedRole {
	return &listedRole{RuleOwnerModifier: client, listed: l.roles[role.GetNamespace()+"/"+role.GetName()]}
}

// binding makes the client of one binding's reconciliation.
func (l policyList) binding(binding reconciliation.RoleBinding, client reconciliation.RoleBindingModifier) *listedBinding {
	return &listedBinding{RoleBindingModifier: client, listed: l.bindings[binding.GetNamespace()+"/"+binding.GetName()]}
}

// listedRole answers the first Get from the list. Later ones, which follow a
// write that failed, ask the API: the role isn't any more what it was.
type listedRole struct {
	reconciliation.RuleOwnerModifier
	listed reconciliation.RuleOwner
	asked  bool
}

func (l *listedRole) Get(namespace, name string) (reconciliation.RuleOwner, error) {
	if l.asked {
		return l.RuleOwnerModifier.Get(namespace, name)
	}
	l.asked = true
	if l.listed == nil {
		return nil, apierrors.NewNotFound(rbacv1.Resource("roles"), name)
	}
	return l.listed, nil
}

// listedBinding does for bindings what listedRole does for roles.
type listedBinding struct {
	reconciliation.RoleBindingModifier
	listed reconciliation.RoleBinding
	asked  bool
}

func (l *listedBinding) Get(namespace, name string) (reconciliation.RoleBinding, error) {
	if l.asked {
		return l.RoleBindingModifier.Get(namespace, name)
	}
	l.asked = true
	if l.listed == nil {
		return nil, apierrors.NewNotFound(rbacv1.Resource("rolebindings"), name)
	}
	return l.listed, nil
}
