package rbac

import (
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	listers "k8s.io/client-go/listers/rbac/v1"

	"byre/apiserver/objectstore"
	"byre/watch"
)

// Tables has a lister for each of the four RBAC resources. Within a namespace,
// they list in the order of names.
type Tables struct {
	roles               *table[*rbacv1.Role]
	roleBindings        *table[*rbacv1.RoleBinding]
	clusterRoles        *table[*rbacv1.ClusterRole]
	clusterRoleBindings *table[*rbacv1.ClusterRoleBinding]
}

// New makes Tables over the stores that lookup finds, which need not exist yet.
// feed is the one that the stores read.
func New(lookup func(schema.GroupResource) *objectstore.Store, feed *watch.Feed) *Tables {
	return &Tables{
		roles:               newTable("roles", lookup, feed, func() *rbacv1.Role { return &rbacv1.Role{} }),
		roleBindings:        newTable("rolebindings", lookup, feed, func() *rbacv1.RoleBinding { return &rbacv1.RoleBinding{} }),
		clusterRoles:        newTable("clusterroles", lookup, feed, func() *rbacv1.ClusterRole { return &rbacv1.ClusterRole{} }),
		clusterRoleBindings: newTable("clusterrolebindings", lookup, feed, func() *rbacv1.ClusterRoleBinding { return &rbacv1.ClusterRoleBinding{} }),
	}
}

// Roles lists roles as of now.
func (t *Tables) Roles() listers.RoleLister { return roles{everywhere[*rbacv1.Role]{t.roles}} }

// RoleBindings lists role bindings as of now.
func (t *Tables) RoleBindings() listers.RoleBindingLister {
	return roleBindings{everywhere[*rbacv1.RoleBinding]{t.roleBindings}}
}

// ClusterRoles lists cluster roles as of now.
func (t *Tables) ClusterRoles() listers.ClusterRoleLister {
	return within[*rbacv1.ClusterRole]{t.clusterRoles, ""}
}

// ClusterRoleBindings lists cluster role bindings as of now.
func (t *Tables) ClusterRoleBindings() listers.ClusterRoleBindingLister {
	return within[*rbacv1.ClusterRoleBinding]{t.clusterRoleBindings, ""}
}

type roles struct{ everywhere[*rbacv1.Role] }

func (r roles) Roles(namespace string) listers.RoleNamespaceLister {
	return within[*rbacv1.Role]{r.table, namespace}
}

type roleBindings struct {
	everywhere[*rbacv1.RoleBinding]
}

func (r roleBindings) RoleBindings(namespace string) listers.RoleBindingNamespaceLister {
	return within[*rbacv1.RoleBinding]{r.table, namespace}
}

// everywhere lists all namespaces of a table.
type everywhere[T metav1.Object] struct{ table *table[T] }

func (e everywhere[T]) List(selector labels.Selector) ([]T, error) {
	objects, err := e.table.list()
	if err != nil {
		return nil, err
	}
	var all []T
	for _, list := range objects {
		all = append(all, list...)
	}
	return selected(all, selector), nil
}

// within lists one namespace of a table, or what is in no namespace.
type within[T metav1.Object] struct {
	table     *table[T]
	namespace string
}

func (w within[T]) List(selector labels.Selector) ([]T, error) {
	objects, err := w.table.list()
	if err != nil {
		return nil, err
	}
	return selected(objects[w.namespace], selector), nil
}

func (w within[T]) Get(name string) (T, error) {
	var none T
	objects, err := w.table.list()
	if err != nil {
		return none, err
	}
	list := objects[w.namespace]
	if i, found := find(list, name); found {
		return list[i], nil
	}
	return none, apierrors.NewNotFound(w.table.resource, name)
}

// selected gives the objects that a selector selects. That of everything, which
// authorizers use, costs nothing.
func selected[T metav1.Object](list []T, selector labels.Selector) []T {
	if selector.Empty() {
		return list
	}
	var some []T
	for _, object := range list {
		if selector.Matches(labels.Set(object.GetLabels())) {
			some = append(some, object)
		}
	}
	return some
}
