package rbac

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	listers "k8s.io/client-go/listers/rbac/v1"

	"byre/apiserver/storage"
	"byre/watch"
)

// Tables has a lister for each of the four RBAC resources.
type Tables struct {
	roles               *table
	roleBindings        *table
	clusterRoles        *table
	clusterRoleBindings *table
}

// New makes Tables over the stores that lookup finds, which need not exist yet.
// feed is the one that the stores read.
func New(lookup func(schema.GroupResource) *storage.Store, feed *watch.Feed) *Tables {
	return &Tables{
		roles:               newTable("roles", lookup, feed, func() metav1.Object { return &rbacv1.Role{} }),
		roleBindings:        newTable("rolebindings", lookup, feed, func() metav1.Object { return &rbacv1.RoleBinding{} }),
		clusterRoles:        newTable("clusterroles", lookup, feed, func() metav1.Object { return &rbacv1.ClusterRole{} }),
		clusterRoleBindings: newTable("clusterrolebindings", lookup, feed, func() metav1.Object { return &rbacv1.ClusterRoleBinding{} }),
	}
}

// Roles lists roles as of now.
func (t *Tables) Roles() listers.RoleLister {
	return roleLister{t.roles, listers.NewRoleLister(t.roles.indexer)}
}

// RoleBindings lists role bindings as of now.
func (t *Tables) RoleBindings() listers.RoleBindingLister {
	return roleBindingLister{t.roleBindings, listers.NewRoleBindingLister(t.roleBindings.indexer)}
}

// ClusterRoles lists cluster roles as of now.
func (t *Tables) ClusterRoles() listers.ClusterRoleLister {
	return clusterRoleLister{t.clusterRoles, listers.NewClusterRoleLister(t.clusterRoles.indexer)}
}

// ClusterRoleBindings lists cluster role bindings as of now.
func (t *Tables) ClusterRoleBindings() listers.ClusterRoleBindingLister {
	return clusterRoleBindingLister{t.clusterRoleBindings, listers.NewClusterRoleBindingLister(t.clusterRoleBindings.indexer)}
}

// The listers below are client-go's over a table's index, each call preceded by
// the table's sync.

type roleLister struct {
	table *table
	listers.RoleLister
}

func (l roleLister) List(selector labels.Selector) ([]*rbacv1.Role, error) {
	if err := l.table.sync(); err != nil {
		return nil, err
	}
	return l.RoleLister.List(selector)
}

func (l roleLister) Roles(namespace string) listers.RoleNamespaceLister {
	return roleNamespaceLister{l.table, l.RoleLister.Roles(namespace)}
}

type roleNamespaceLister struct {
	table *table
	listers.RoleNamespaceLister
}

func (l roleNamespaceLister) List(selector labels.Selector) ([]*rbacv1.Role, error) {
	if err := l.table.sync(); err != nil {
		return nil, err
	}
	return l.RoleNamespaceLister.List(selector)
}

func (l roleNamespaceLister) Get(name string) (*rbacv1.Role, error) {
	if err := l.table.sync(); err != nil {
		return nil, err
	}
	return l.RoleNamespaceLister.Get(name)
}

type roleBindingLister struct {
	table *table
	listers.RoleBindingLister
}

func (l roleBindingLister) List(selector labels.Selector) ([]*rbacv1.RoleBinding, error) {
	if err := l.table.sync(); err != nil {
		return nil, err
	}
	return l.RoleBindingLister.List(selector)
}

func (l roleBindingLister) RoleBindings(namespace string) listers.RoleBindingNamespaceLister {
	return roleBindingNamespaceLister{l.table, l.RoleBindingLister.RoleBindings(namespace)}
}

type roleBindingNamespaceLister struct {
	table *table
	listers.RoleBindingNamespaceLister
}

func (l roleBindingNamespaceLister) List(selector labels.Selector) ([]*rbacv1.RoleBinding, error) {
	if err := l.table.sync(); err != nil {
		return nil, err
	}
	return l.RoleBindingNamespaceLister.List(selector)
}

func (l roleBindingNamespaceLister) Get(name string) (*rbacv1.RoleBinding, error) {
	if err := l.table.sync(); err != nil {
		return nil, err
	}
	return l.RoleBindingNamespaceLister.Get(name)
}

type clusterRoleLister struct {
	table *table
	listers.ClusterRoleLister
}

func (l clusterRoleLister) List(selector labels.Selector) ([]*rbacv1.ClusterRole, error) {
	if err := l.table.sync(); err != nil {
		return nil, err
	}
	return l.ClusterRoleLister.List(selector)
}

func (l clusterRoleLister) Get(name string) (*rbacv1.ClusterRole, error) {
	if err := l.table.sync(); err != nil {
		return nil, err
	}
	return l.ClusterRoleLister.Get(name)
}

type clusterRoleBindingLister struct {
	table *table
	listers.ClusterRoleBindingLister
}

func (l clusterRoleBindingLister) List(selector labels.Selector) ([]*rbacv1.ClusterRoleBinding, error) {
	if err := l.table.sync(); err != nil {
		return nil, err
	}
	return l.ClusterRoleBindingLister.List(selector)
}

func (l clusterRoleBindingLister) Get(name string) (*rbacv1.ClusterRoleBinding, error) {
	if err := l.table.sync(); err != nil {
		return nil, err
	}
	return l.ClusterRoleBindingLister.Get(name)
}
