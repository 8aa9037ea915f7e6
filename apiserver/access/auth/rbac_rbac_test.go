package auth

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/compatibility"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	clusterrole "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/storage"
	role "k8s.io/kubernetes/pkg/registry/rbac/role/storage"

	"byre/apiserver/storage"

	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// cluster is a store of Roles and ClusterRoles, and listers of it.
type cluster struct {
	*testing.T
	*RBACListers
	store *sqlstore.Store
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	store, feed := dbtest.RunStore(t, storetest.NewModel(), watch.Options{})
	getter := storage.NewRESTOptionsGetter(storage.Backend{Store: store, Feed: feed}, storage.BuiltinResources(compatibility.DefaultBuildEffectiveVersion()))
	if _, err := role.NewREST(getter); err != nil {
		t.Fatal(err)
	}
	if _, err := clusterrole.NewREST(getter); err != nil {
		t.Fatal(err)
	}
	return &cluster{t, NewRBAC(getter.Lookup, feed), store}
}

// write creates, replaces or deletes (nil) an object.
func (c *cluster) write(resource, namespace, name string, object metav1.Object) {
	c.Helper()
	w := sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Group: rbacv1.GroupName, Resource: resource, Namespace: namespace, Name: name}}
	if old, _, err := c.store.Get(c.Context(), w.Key); err == nil {
		w.Op, w.Replaces = sqlstore.Update, old.Revision
	}
	if object == nil {
		w.Op = sqlstore.Delete
	} else {
		value, err := json.Marshal(object)
		if err != nil {
			c.Fatal(err)
		}
		w.Value = value
	}
	if _, err := c.store.Commit(c.Context(), w); err != nil {
		c.Fatal(err)
	}
}

func typed(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: kind}
}

func named(namespace, name, team string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"team": team}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}}
}

// describe returns objects by namespace and name with their team, in their order.
func describe[T metav1.Object](list []T) (all []string) {
	for _, o := range list {
		all = append(all, o.GetNamespace()+"/"+o.GetName()+"="+o.GetLabels()["team"])
	}
	return all
}

// After each of many random writes, each lister has exactly the objects that there are then: in a namespace, in all, by name and by
// a selector. An object that has not changed is not decoded again.
func TestListers_HaveEveryWriteAtOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	roles, clusterRoles := map[string]string{}, map[string]string{} // the teams, by namespace and name
	known := map[string]*rbacv1.Role{}
	for i := range 400 {
		namespace, name, team := pick("m", "n"), pick("a", "b", "c"), pick("red", "blue")
		isCluster, isDeleted := random.IntN(3) == 0, random.IntN(3) == 0
		of, key, resource := roles, namespace+"/"+name, "roles"
		if isCluster {
			of, key, resource, namespace = clusterRoles, "/"+name, "clusterroles", ""
		}
		switch _, exists := of[key]; {
		case isDeleted && !exists:
			continue
		case isDeleted:
			c.write(resource, namespace, name, nil)
			delete(of, key)
		case isCluster:
			c.write(resource, namespace, name, &rbacv1.ClusterRole{TypeMeta: typed("ClusterRole"), ObjectMeta: named(namespace, name, team)})
			of[key] = team
		default:
			c.write(resource, namespace, name, &rbacv1.Role{TypeMeta: typed("Role"), ObjectMeta: named(namespace, name, team)})
			of[key] = team
		}

		want := func(of map[string]string, in, team string) (all []string) {
			for _, key := range slices.Sorted(maps.Keys(of)) {
				if (in == "" || key[:2] == in) && (team == "" || of[key] == team) {
					all = append(all, key+"="+of[key])
				}
			}
			return all
		}
		expect := func(what string, got []string, err error, want []string) {
			t.Helper()
			if slices.Sort(got); err != nil || !slices.Equal(got, want) {
				t.Fatalf("write %d, %s: %q, %v, want %q", i, what, got, err, want)
			}
		}
		all, err := c.Roles().Lister().List(labels.Everything())
		expect("all", describe(all), err, want(roles, "", ""))
		blue := labels.SelectorFromSet(labels.Set{"team": "blue"})
		selected, err := c.Roles().Lister().List(blue)
		expect("selected", describe(selected), err, want(roles, "", "blue"))
		in, err := c.Roles().Lister().Roles("n").List(labels.Everything())
		if !slices.IsSortedFunc(in, func(a, b *rbacv1.Role) int { return len(a.Name) - len(b.Name) + int(a.Name[0]) - int(b.Name[0]) }) {
			t.Errorf("the names of one namespace are in the order %q", describe(in))
		}
		expect("in a namespace", describe(in), err, want(roles, "n/", ""))
		in, err = c.Roles().Lister().Roles("n").List(blue)
		expect("selected in a namespace", describe(in), err, want(roles, "n/", "blue"))
		clustered, err := c.ClusterRoles().Lister().List(labels.Everything())
		expect("of the cluster", describe(clustered), err, want(clusterRoles, "", ""))
		for _, name := range []string{"a", "b", "c"} {
			got, err := c.Roles().Lister().Roles("m").Get(name)
			if team, exists := roles["m/"+name]; exists != (err == nil) || exists && got.Labels["team"] != team || !exists && !apierrors.IsNotFound(err) {
				t.Fatalf("write %d: m/%s is %v, %v, want %q", i, name, got, err, team)
			}
		}
		for _, o := range all {
			revision := fmt.Sprint(o.Namespace, "/", o.Name, "@", o.ResourceVersion)
			if before := known[revision]; before != nil && before != o {
				t.Fatalf("write %d: %s is decoded again", i, revision)
			}
			if known[revision] = o; o.ManagedFields != nil || o.ResourceVersion == "" {
				t.Errorf("it is %+v", o)
			}
		}
	}
}

// Before the resources are served, a list fails; it does not say that there are none.
func TestListers_FailBeforeTheyCanTell(t *testing.T) {
	t.Parallel()
	_, feed := dbtest.RunStore(t, storetest.NewModel(), watch.Options{})
	listers := NewRBAC(func(schema.GroupResource) *storage.Store { return nil }, feed)
	if list, err := listers.RoleBindings().Lister().List(labels.Everything()); err == nil {
		t.Errorf("a list of what is not served yet: %v", list)
	}
	if _, err := listers.ClusterRoleBindings().Lister().Get("a"); err == nil || apierrors.IsNotFound(err) {
		t.Errorf("one of what is not served yet: %v", err)
	}
}

// A value that can't be read is an error, and never a shorter list: a missing binding might be one that the list of them takes
// away.
func TestListers_FailForAnObjectThatCannotBeRead(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.write("roles", "n", "a", &rbacv1.Role{TypeMeta: typed("Role"), ObjectMeta: named("n", "a", "red")})
	key := sqlstore.Key{Group: rbacv1.GroupName, Resource: "roles", Namespace: "n", Name: "broken"}
	if _, err := c.store.Commit(context.Background(), sqlstore.Write{Op: sqlstore.Create, Key: key, Value: []byte(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"broken","namespace":"n"},"rules":"no list"}`)}); err != nil {
		t.Fatal(err)
	}
	if list, err := c.Roles().Lister().List(labels.Everything()); err == nil {
		t.Errorf("a list with what can't be read: %q", describe(list))
	}
}
