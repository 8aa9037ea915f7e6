package auth

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	clusterrole "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/storage"
	clusterrolebinding "k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding/storage"
	role "k8s.io/kubernetes/pkg/registry/rbac/role/storage"
	rolebinding "k8s.io/kubernetes/pkg/registry/rbac/rolebinding/storage"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"byre/apiserver/storage"
	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// rules is a store of RBAC objects with the listers over it.
type rules struct {
	*RBACListers
	getter *storage.RESTOptionsGetter
}

func newRules(t testing.TB) *rules {
	t.Helper()
	return newRulesOn(t, storetest.NewModel())
}

func newRulesOn(t testing.TB, driver sqlstore.Driver) *rules {
	t.Helper()
	store, feed := dbtest.RunStore(t, driver, watch.Options{})
	getter := storage.NewRESTOptionsGetter(storage.Backend{Store: store, Feed: feed},
		storage.BuiltinResources(compatibility.DefaultBuildEffectiveVersion()))
	for _, build := range []func() error{
		func() error { _, err := role.NewREST(getter); return err },
		func() error { _, err := rolebinding.NewREST(getter); return err },
		func() error { _, err := clusterrole.NewREST(getter); return err },
		func() error { _, err := clusterrolebinding.NewREST(getter); return err },
	} {
		if err := build(); err != nil {
			t.Fatal(err)
		}
	}
	return &rules{NewRBAC(getter.Lookup, feed), getter}
}

// place returns the store and the key of an object.
func (r *rules) place(t testing.TB, object metav1.Object) (*storage.Store, string) {
	t.Helper()
	var resource string
	switch object.(type) {
	case *rbacv1.Role:
		resource = "roles"
	case *rbacv1.RoleBinding:
		resource = "rolebindings"
	case *rbacv1.ClusterRole:
		resource = "clusterroles"
	case *rbacv1.ClusterRoleBinding:
		resource = "clusterrolebindings"
	default:
		t.Fatalf("unexpected %T", object)
	}
	key := "/" + resource + "/"
	if object.GetNamespace() != "" {
		key += object.GetNamespace() + "/"
	}
	return r.getter.Lookup(schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}), key + object.GetName()
}

// internal converts a version 1 object to the one that registries store.
func internal(t testing.TB, object runtime.Object) runtime.Object {
	t.Helper()
	legacyscheme.Scheme.Default(object)
	out, err := legacyscheme.Scheme.ConvertToVersion(object,
		schema.GroupVersion{Group: rbacv1.GroupName, Version: runtime.APIVersionInternal})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (r *rules) create(t testing.TB, object metav1.Object) {
	t.Helper()
	store, key := r.place(t, object)
	in := internal(t, object.(runtime.Object))
	if err := store.Create(context.Background(), key, in, in.DeepCopyObject(), 0); err != nil {
		t.Fatal(err)
	}
}

func (r *rules) remove(t testing.TB, object metav1.Object) {
	t.Helper()
	store, key := r.place(t, object)
	out := internal(t, object.(runtime.Object))
	if err := store.Delete(context.Background(), key, out, nil, apistorage.ValidateAllObjectFunc, nil,
		apistorage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (r *rules) update(t testing.TB, object metav1.Object) {
	t.Helper()
	store, key := r.place(t, object)
	in := internal(t, object.(runtime.Object))
	err := store.GuaranteedUpdate(context.Background(), key, in.DeepCopyObject(), false, nil,
		func(runtime.Object, apistorage.ResponseMeta) (runtime.Object, *uint64, error) { return in, nil, nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
}

func question(name, verb, resource, namespace string, groups ...string) authorizer.Attributes {
	return authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: name, Groups: groups},
		Verb: verb, Resource: resource, Namespace: namespace, APIVersion: "v1", ResourceRequest: true,
	}
}

func allowed(t testing.TB, a authorizer.Authorizer, q authorizer.Attributes) bool {
	t.Helper()
	decision, _, err := a.Authorize(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	return decision == authorizer.DecisionAllow
}

func reader(resource string) []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{resource}}}
}

func toUser(name string) []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}}
}

// TestRBAC_WritesAreInForceAtOnce: a decision right after a write reflects that write.
func TestRBAC_WritesAreInForceAtOnce(t *testing.T) {
	t.Parallel()
	r := newRules(t)
	a := newAuth(t, fake.NewClientset(), r.RBACListers, options(t, "--authorization-mode=RBAC")).Authorizer
	pods, secrets := question("u", "get", "pods", "n"), question("u", "get", "secrets", "n")
	expect := func(what string, q authorizer.Attributes, want bool) {
		t.Helper()
		if got := allowed(t, a, q); got != want {
			t.Errorf("%s: allowed is %v", what, got)
		}
	}

	expect("nothing", pods, false)
	cluster := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: reader("pods")}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Subjects: toUser("u"),
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "r"}}
	r.create(t, cluster)
	expect("unbound", pods, false)
	r.create(t, binding)
	expect("bound", pods, true)
	expect("another resource", secrets, false)
	cluster.Rules = reader("secrets")
	r.update(t, cluster)
	expect("no longer in the role", pods, false)
	expect("now in the role", secrets, true)
	r.remove(t, binding)
	expect("unbound again", secrets, false)

	local := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "b"}, Subjects: toUser("u"),
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "r"}}
	r.create(t, local)
	expect("bound to no role", pods, false)
	r.create(t, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "r"}, Rules: reader("pods")})
	expect("bound in the namespace", pods, true)
	expect("another namespace", question("u", "get", "pods", "m"), false)
	r.remove(t, local)
	expect("unbound in the namespace", pods, false)
	expect("superuser", question("root", "get", "pods", "n", user.SystemPrivilegedGroup), true)
}

// TestRBAC_ConcurrentWritersSeeTheirOwnWrites: while other goroutines make decisions
// and bindings are created and deleted, each writer's decisions reflect its own writes.
func TestRBAC_ConcurrentWritersSeeTheirOwnWrites(t *testing.T) {
	t.Parallel()
	r := newRules(t)
	a := newAuth(t, fake.NewClientset(), r.RBACListers, options(t, "--authorization-mode=RBAC")).Authorizer
	r.create(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: reader("pods")})
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			name := fmt.Sprintf("u%d", i)
			binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: toUser(name),
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "r"}}
			for range 25 {
				r.create(t, binding)
				if !allowed(t, a, question(name, "get", "pods", "")) {
					t.Errorf("%s: not in force", name)
				}
				r.remove(t, binding)
				if allowed(t, a, question(name, "get", "pods", "")) {
					t.Errorf("%s: still in force", name)
				}
			}
		})
	}
	group.Wait()
}

// policy returns upstream's bootstrap policy and some bindings of its roles.
func policy() []metav1.Object {
	var objects []metav1.Object
	for _, r := range bootstrappolicy.ClusterRoles() {
		objects = append(objects, &r)
	}
	for _, b := range bootstrappolicy.ClusterRoleBindings() {
		objects = append(objects, &b)
	}
	for namespace, list := range bootstrappolicy.NamespaceRoles() {
		for _, r := range list {
			r.Namespace = namespace
			objects = append(objects, &r)
		}
	}
	for namespace, list := range bootstrappolicy.NamespaceRoleBindings() {
		for _, b := range list {
			b.Namespace = namespace
			objects = append(objects, &b)
		}
	}
	for _, bound := range []struct{ namespace, user, role string }{
		{"n", "viewer", "view"}, {"n", "editor", "edit"}, {"m", "editor", "view"}, {"m", "owner", "admin"},
		{"kube-system", "owner", "view"},
	} {
		objects = append(objects, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: bound.namespace, Name: bound.user + "-" + bound.role},
			Subjects:   toUser(bound.user),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: bound.role},
		})
	}
	return objects
}

// TestRBAC_DecidesAsUpstream makes 2,000 generated decisions with the authorizer over
// the store and with upstream's authorizer over informers. The decisions are equal.
func TestRBAC_DecidesAsUpstream(t *testing.T) {
	t.Parallel()
	r := newRules(t)
	oracle := fake.NewClientset()
	for _, object := range policy() {
		r.create(t, object)
		if err := oracle.Tracker().Add(object.(runtime.Object)); err != nil {
			t.Fatal(err)
		}
	}
	o := options(t)
	ours := newAuth(t, fake.NewClientset(), r.RBACListers, o)
	shared := informers.NewSharedInformerFactory(oracle, 0)
	config, err := o.Authorization.ToAuthorizationConfig(shared)
	if err != nil {
		t.Fatal(err)
	}
	theirs, resolver, err := config.New(t.Context(), "oracle")
	if err != nil {
		t.Fatal(err)
	}
	shared.Start(t.Context().Done())
	shared.WaitForCacheSync(t.Context().Done())

	random := rand.New(rand.NewPCG(1, 36))
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	counts := map[authorizer.Decision]int{}
	for range 2000 {
		q := authorizer.AttributesRecord{
			User: &user.DefaultInfo{
				Name: pick("viewer", "editor", "owner", "system:kube-scheduler", "system:kube-controller-manager",
					"system:node:a", "system:serviceaccount:kube-system:namespace-controller", "system:anonymous"),
				Groups: [][]string{nil, {user.AllAuthenticated}, {user.AllUnauthenticated}, {"system:nodes", user.AllAuthenticated},
					{"system:serviceaccounts:kube-system"}, {user.SystemPrivilegedGroup}}[random.IntN(6)],
			},
			Verb: pick("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection",
				"impersonate"),
			Namespace:  pick("", "n", "m", "kube-system"),
			APIGroup:   pick("", "apps", "rbac.authorization.k8s.io", "coordination.k8s.io", "authorization.k8s.io"),
			APIVersion: "v1",
			Resource: pick("pods", "secrets", "nodes", "deployments", "roles", "leases", "selfsubjectaccessreviews",
				"bindings", "events"),
			Subresource:     pick("", "", "", "status", "exec", "scale"),
			Name:            pick("", "x", "extension-apiserver-authentication", "a"),
			ResourceRequest: random.IntN(8) > 0,
		}
		if !q.ResourceRequest {
			q.Path = pick("/healthz", "/version", "/metrics", "/apis", "/api/v1", "/openapi/v2", "/debug/pprof/", "/")
		}
		want, wantReason, _ := theirs.Authorize(context.Background(), q)
		got, gotReason, _ := ours.Authorizer.Authorize(context.Background(), q)
		// If several rules allow a request, the reason may name any of them.
		if got != want || got != authorizer.DecisionAllow && gotReason != wantReason {
			t.Errorf("%+v by %+v: got %v (%s), want %v (%s)", q, q.User, got, gotReason, want, wantReason)
		}
		counts[got]++
	}
	if counts[authorizer.DecisionAllow] < 100 || counts[authorizer.DecisionNoOpinion] < 100 {
		t.Errorf("the questions are one-sided: %v", counts)
	}

	who := &user.DefaultInfo{Name: "editor", Groups: []string{user.AllAuthenticated}}
	want, wantPaths, _, _ := resolver.RulesFor(context.Background(), who, "n")
	got, gotPaths, _, _ := ours.RuleResolver.RulesFor(context.Background(), who, "n")
	if len(want) == 0 || len(got) != len(want) || len(gotPaths) != len(wantPaths) {
		t.Errorf("rules of %s: got %d and %d, want %d and %d", who.Name, len(got), len(gotPaths), len(want), len(wantPaths))
	}
}

// BenchmarkAuthorize measures a decision over the bootstrap policy while nothing is
// written: for an ordinary user, whose bindings are searched, and for a superuser.
func BenchmarkAuthorize(b *testing.B) {
	r := newRules(b)
	for _, object := range policy() {
		r.create(b, object)
	}
	a := newAuth(b, fake.NewClientset(), r.RBACListers, options(b)).Authorizer
	for _, q := range []authorizer.Attributes{
		question("editor", "get", "pods", "n", user.AllAuthenticated),
		question("nobody", "get", "pods", "n", user.AllAuthenticated),
		question("root", "get", "pods", "n", user.SystemPrivilegedGroup),
	} {
		b.Run(q.GetUser().GetName(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := a.Authorize(context.Background(), q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// stalledDriver is a database whose lists end, with an error, only when they are released.
type stalledDriver struct {
	sqlstore.Driver
	lists    atomic.Int32
	released chan struct{}
}

func (d *stalledDriver) List(
	context.Context, sqlstore.Query, func(sqlstore.Record) error,
) (sqlstore.ListResult, error) {
	d.lists.Add(1)
	<-d.released
	return sqlstore.ListResult{}, fmt.Errorf("%w: dial tcp 10.0.0.5:5432", sqlstore.ErrUnavailable)
}

// TestRBAC_RequestsShareALoad: while the database does not answer, the requests that wait for
// RBAC's objects wait for one read together. When each read again after the one before it had
// failed, the last of them waited for the sum.
func TestRBAC_RequestsShareALoad(t *testing.T) {
	t.Parallel()
	const requests = 50
	driver := &stalledDriver{Driver: storetest.NewModel(), released: make(chan struct{})}
	r := newRulesOn(t, driver)
	var asking atomic.Int32
	var done sync.WaitGroup
	for range requests {
		done.Go(func() {
			asking.Add(1)
			_, err := r.ClusterRoles().Lister().List(labels.Everything())
			if err == nil || strings.Contains(err.Error(), "10.0.0.5") { // clients see the error
				t.Errorf("a list without a database: %v", err)
			}
		})
	}
	storetest.Eventually(t, "the requests wait for a list", func() bool {
		return asking.Load() == requests && driver.lists.Load() > 0
	})
	close(driver.released)
	done.Wait()
	if n := driver.lists.Load(); n > requests/2 {
		t.Errorf("%d requests made %d lists", requests, n)
	}
}

// cluster is a store of Roles and ClusterRoles, and listers of it.
type cluster struct {
	*testing.T
	*RBACListers
	store *sqlstore.Store
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	store, feed := dbtest.RunStore(t, storetest.NewModel(), watch.Options{})
	getter := storage.NewRESTOptionsGetter(storage.Backend{Store: store, Feed: feed},
		storage.BuiltinResources(compatibility.DefaultBuildEffectiveVersion()))
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
	w := sqlstore.Write{Op: sqlstore.Create,
		Key: sqlstore.Key{Group: rbacv1.GroupName, Resource: resource, Namespace: namespace, Name: name}}
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
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"team": team},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}}
}

// describe returns objects by namespace and name with their team, in their order.
func describe[T metav1.Object](list []T) (all []string) {
	for _, o := range list {
		all = append(all, o.GetNamespace()+"/"+o.GetName()+"="+o.GetLabels()["team"])
	}
	return all
}

// After each of many random writes, each lister has exactly the objects that there are then: in a namespace, in all, by
// name and by a selector. An object that has not changed is not decoded again.
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
			c.write(resource, namespace, name,
				&rbacv1.ClusterRole{TypeMeta: typed("ClusterRole"), ObjectMeta: named(namespace, name, team)})
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
		if !slices.IsSortedFunc(in, func(a, b *rbacv1.Role) int {
			return len(a.Name) - len(b.Name) + int(a.Name[0]) - int(b.Name[0])
		}) {
			t.Errorf("the names of one namespace are in the order %q", describe(in))
		}
		expect("in a namespace", describe(in), err, want(roles, "n/", ""))
		in, err = c.Roles().Lister().Roles("n").List(blue)
		expect("selected in a namespace", describe(in), err, want(roles, "n/", "blue"))
		clustered, err := c.ClusterRoles().Lister().List(labels.Everything())
		expect("of the cluster", describe(clustered), err, want(clusterRoles, "", ""))
		for _, name := range []string{"a", "b", "c"} {
			got, err := c.Roles().Lister().Roles("m").Get(name)
			if team, exists := roles["m/"+name]; exists != (err == nil) || exists && got.Labels["team"] != team || !exists &&
				!apierrors.IsNotFound(err) {
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

// A value that can't be read is an error, and never a shorter list: a missing binding might be one that the list of
// them takes away.
func TestListers_FailForAnObjectThatCannotBeRead(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.write("roles", "n", "a", &rbacv1.Role{TypeMeta: typed("Role"), ObjectMeta: named("n", "a", "red")})
	key := sqlstore.Key{Group: rbacv1.GroupName, Resource: "roles", Namespace: "n", Name: "broken"}
	if _, err := c.store.Commit(context.Background(),
		sqlstore.Write{Op: sqlstore.Create, Key: key,
			Value: []byte(
				`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"broken","namespace":"n"},"rules":"no list"}`)}); err != nil {
		t.Fatal(err)
	}
	if list, err := c.Roles().Lister().List(labels.Everything()); err == nil {
		t.Errorf("a list with what can't be read: %q", describe(list))
	}
}
