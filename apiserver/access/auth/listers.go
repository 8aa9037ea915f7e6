package auth

import (
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	informers "k8s.io/client-go/informers/rbac/v1"
	listers "k8s.io/client-go/listers/rbac/v1"

	"byre/apiserver/storage"

	"byre/watch"
)

// RBACListers has a lister for each of the four RBAC resources, in the form of client-go's
// informers. The objects of a namespace are listed in the order of their names.
type RBACListers struct {
	roles               *resourceCache[*rbacv1.Role]
	roleBindings        *resourceCache[*rbacv1.RoleBinding]
	clusterRoles        *resourceCache[*rbacv1.ClusterRole]
	clusterRoleBindings *resourceCache[*rbacv1.ClusterRoleBinding]
}

// NewRBAC returns listers of the stores that find returns. find may return nil until the
// first call of a lister. feed must be the feed that the stores read.
func NewRBAC(find func(schema.GroupResource) *storage.Store, feed *watch.Feed) *RBACListers {
	return &RBACListers{
		roles:               newResourceCache("roles", find, feed, func() *rbacv1.Role { return &rbacv1.Role{} }),
		roleBindings:        newResourceCache("rolebindings", find, feed, func() *rbacv1.RoleBinding { return &rbacv1.RoleBinding{} }),
		clusterRoles:        newResourceCache("clusterroles", find, feed, func() *rbacv1.ClusterRole { return &rbacv1.ClusterRole{} }),
		clusterRoleBindings: newResourceCache("clusterrolebindings", find, feed, func() *rbacv1.ClusterRoleBinding { return &rbacv1.ClusterRoleBinding{} }),
	}
}

// Roles has the lister of Roles.
func (t *RBACListers) Roles() informers.TypedRoleInformer {
	return informers.ToTypedRoleInformer(storage.Informer[listers.RoleLister]{Of: roles{allNamespaces[*rbacv1.Role]{t.roles}}})
}

// RoleBindings has the lister of RoleBindings.
func (t *RBACListers) RoleBindings() informers.TypedRoleBindingInformer {
	return informers.ToTypedRoleBindingInformer(storage.Informer[listers.RoleBindingLister]{
		Of: roleBindings{allNamespaces[*rbacv1.RoleBinding]{t.roleBindings}},
	})
}

// ClusterRoles has the lister of ClusterRoles.
func (t *RBACListers) ClusterRoles() informers.TypedClusterRoleInformer {
	return informers.ToTypedClusterRoleInformer(storage.Informer[listers.ClusterRoleLister]{
		Of: oneNamespace[*rbacv1.ClusterRole]{t.clusterRoles, ""},
	})
}

// ClusterRoleBindings has the lister of ClusterRoleBindings.
func (t *RBACListers) ClusterRoleBindings() informers.TypedClusterRoleBindingInformer {
	return informers.ToTypedClusterRoleBindingInformer(storage.Informer[listers.ClusterRoleBindingLister]{
		Of: oneNamespace[*rbacv1.ClusterRoleBinding]{t.clusterRoleBindings, ""},
	})
}

type roles struct{ allNamespaces[*rbacv1.Role] }

func (r roles) Roles(namespace string) listers.RoleNamespaceLister {
	return oneNamespace[*rbacv1.Role]{r.cache, namespace}
}

type roleBindings struct {
	allNamespaces[*rbacv1.RoleBinding]
}

func (r roleBindings) RoleBindings(namespace string) listers.RoleBindingNamespaceLister {
	return oneNamespace[*rbacv1.RoleBinding]{r.cache, namespace}
}

// allNamespaces lists the objects of all namespaces.
type allNamespaces[T metav1.Object] struct{ cache *resourceCache[T] }

func (e allNamespaces[T]) List(selector labels.Selector) ([]T, error) {
	objects, err := e.cache.list()
	if err != nil {
		return nil, err
	}
	var all []T
	for _, list := range objects {
		all = append(all, list...)
	}
	return filterBySelector(all, selector), nil
}

// oneNamespace lists the objects of one namespace, or cluster-scoped objects if
// namespace is empty.
type oneNamespace[T metav1.Object] struct {
	cache     *resourceCache[T]
	namespace string
}

func (w oneNamespace[T]) List(selector labels.Selector) ([]T, error) {
	objects, err := w.cache.list()
	if err != nil {
		return nil, err
	}
	return filterBySelector(objects[w.namespace], selector), nil
}

func (w oneNamespace[T]) Get(name string) (T, error) {
	var none T
	objects, err := w.cache.list()
	if err != nil {
		return none, err
	}
	list := objects[w.namespace]
	if i, found := find(list, name); found {
		return list[i], nil
	}
	return none, apierrors.NewNotFound(w.cache.resource, name)
}

// filterBySelector returns the objects that match selector. It returns list itself for
// the selector of everything, which authorizers use.
func filterBySelector[T metav1.Object](list []T, selector labels.Selector) []T {
	if selector.Empty() {
		return list
	}
	var matching []T
	for _, object := range list {
		if selector.Matches(labels.Set(object.GetLabels())) {
			matching = append(matching, object)
		}
	}
	return matching
}
