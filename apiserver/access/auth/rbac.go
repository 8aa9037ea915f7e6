package auth

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apistorage "k8s.io/apiserver/pkg/storage"
	informers "k8s.io/client-go/informers/rbac/v1"
	listers "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/klog/v2"

	"byre/apiserver/storage"
	"byre/apiserver/storage/encoding"
	"byre/sqlstore"
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
		roles: newResourceCache("roles", find, feed, func() *rbacv1.Role { return &rbacv1.Role{} }),
		roleBindings: newResourceCache("rolebindings", find, feed, func() *rbacv1.RoleBinding {
			return &rbacv1.RoleBinding{}
		}),
		clusterRoles: newResourceCache("clusterroles", find, feed, func() *rbacv1.ClusterRole {
			return &rbacv1.ClusterRole{}
		}),
		clusterRoleBindings: newResourceCache("clusterrolebindings", find, feed, func() *rbacv1.ClusterRoleBinding {
			return &rbacv1.ClusterRoleBinding{}
		}),
	}
}

// Roles has the lister of Roles.
func (t *RBACListers) Roles() informers.TypedRoleInformer {
	return informers.ToTypedRoleInformer(
		storage.Informer[listers.RoleLister]{Of: roles{allNamespaces[*rbacv1.Role]{t.roles}}})
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

// loadTimeout bounds a read of a resource. Only the first read may need the database.
const loadTimeout = 10 * time.Second

// resourceCache holds the decoded objects of one resource.
type resourceCache[T metav1.Object] struct {
	resource schema.GroupResource
	newFunc  func() T
	lookup   func(schema.GroupResource) *storage.Store
	feed     *watch.Feed

	// objects are the objects by namespace ("" for cluster-scoped ones), ordered by
	// name. Invariant: they are those of revision or of a later one. The map and its
	// slices are never modified after Store.
	objects  atomic.Pointer[map[string][]T]
	revision atomic.Int64

	// loads runs one load at a time, whose result is that of all who wait for it: a load
	// that fails slowly fails once. snapshot, the feed's snapshot at the last load, and
	// byRevision, the objects of that snapshot by their revision, are the load's own.
	loads      singleflight.Group
	snapshot   watch.Snapshot
	byRevision map[int64]T
}

func newResourceCache[T metav1.Object](
	resource string, lookup func(schema.GroupResource) *storage.Store, feed *watch.Feed, newFunc func() T,
) *resourceCache[T] {
	return &resourceCache[T]{
		resource: schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: resource},
		newFunc:  newFunc,
		lookup:   lookup,
		feed:     feed,
	}
}

// list returns the current objects by namespace.
func (c *resourceCache[T]) list() (map[string][]T, error) {
	if err := c.sync(); err != nil {
		return nil, err
	}
	return *c.objects.Load(), nil
}

func find[T metav1.Object](list []T, name string) (int, bool) {
	return slices.BinarySearchFunc(list, name, func(object T, name string) int {
		return cmp.Compare(object.GetName(), name)
	})
}

// sync updates the cache to the feed's revision. It costs one comparison if nothing was
// written since the last call, and a few if only other resources were written.
func (c *resourceCache[T]) sync() error {
	revision := c.feed.Revision()
	for first := true; first && revision == 0 || c.revision.Load() < revision; first = false {
		// A load that has begun before this call may be of an earlier revision; the next
		// one is not.
		if _, err, _ := c.loads.Do("", func() (any, error) { return nil, c.load() }); err != nil {
			return fmt.Errorf("reading %s: %s", c.resource, sqlstore.Public(err)) // clients see it
		}
	}
	return nil
}

// load reads the objects of the feed's revision.
func (c *resourceCache[T]) load() (err error) {
	defer func() {
		if err != nil {
			klog.ErrorS(err, "Objects of RBAC can't be read", "resource", c.resource)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
	defer cancel()
	snapshot, err := c.feed.Snapshot(ctx, sqlstore.Resource{Group: c.resource.Group, Resource: c.resource.Resource})
	if err != nil {
		return err
	}
	if c.objects.Load() == nil || !snapshot.Same(c.snapshot) {
		if err := c.decodeChanged(ctx); err != nil {
			return err
		}
	}
	c.snapshot = snapshot
	c.revision.Store(snapshot.Revision())
	return nil
}

// decodeChanged lists the resource from the watch cache and decodes the objects that have
// changed.
func (c *resourceCache[T]) decodeChanged(ctx context.Context) error {
	store := c.lookup(c.resource)
	if store == nil {
		return errors.New("not served yet")
	}
	list, err := store.ListEncoded(ctx, "/"+c.resource.Resource, apistorage.ListOptions{
		ResourceVersion: "0",
		Recursive:       true,
		Predicate:       apistorage.Everything,
	}, store.Stored())
	if err != nil {
		return err
	}
	byRevision, objects := make(map[int64]T, len(c.byRevision)), map[string][]T{}
	for item, err := range list.Items { // ordered by namespace and name
		if err != nil {
			return err
		}
		object, ok := c.byRevision[item.ResourceVersion()]
		if !ok {
			if object, err = c.decode(item); err != nil {
				return err
			}
		}
		byRevision[item.ResourceVersion()] = object
		objects[object.GetNamespace()] = append(objects[object.GetNamespace()], object)
	}
	c.byRevision = byRevision
	c.objects.Store(&objects)
	return nil
}

func (c *resourceCache[T]) decode(item encoding.Encoded) (T, error) {
	object := c.newFunc()
	if err := json.Unmarshal(item.AppendJSON(nil, true), object); err != nil {
		return object, err
	}
	object.SetManagedFields(nil) // not used by authorizers, and most of the object's size
	return object, nil
}
