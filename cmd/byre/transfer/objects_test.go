package transfer

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"byre/apiserver/storage/changes"
	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	etcdserver "byre/sqlstore/etcd/server"
)

// etcdStore is a database as "byre etcd" fills it.
type etcdStore struct {
	*testing.T
	sqlstore.Driver
	objects *Objects
}

func onEachEtcdStore(t *testing.T, test func(etcdStore)) {
	for _, kind := range dbtest.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			driver := kind.Open(t)
			t.Cleanup(func() { _ = driver.Close() })
			objects, err := NewObjects(driver)
			if err != nil {
				t.Fatal(err)
			}
			test(etcdStore{t, driver, objects})
		})
	}
}

// put puts a value, or deletes the key if that is nil, and returns the revision.
func (s etcdStore) put(key string, value []byte) int64 {
	s.Helper()
	w := sqlstore.Write{Op: sqlstore.Create, Key: etcdserver.RecordOf(key), UID: "7.1f", Encoding: "etcd/base64",
		Value:  []byte(base64.StdEncoding.EncodeToString(value)),
		Author: sqlstore.Author{User: "kube-apiserver-etcd-client", Verb: "put"}}
	if strings.HasPrefix(string(value), "{") {
		w.Encoding, w.Value = "etcd/text", value
	}
	if old, _, err := s.Driver.Get(s.Context(), w.Key); err == nil {
		w.Op, w.Replaces = sqlstore.Update, old.Revision
	}
	if value == nil {
		w.Op = sqlstore.Delete
	}
	outcomes, err := s.Commit(s.Context(), []sqlstore.Write{w})
	if err != nil || outcomes[0].Err != nil {
		s.Fatal(err, outcomes)
	}
	return outcomes[0].Revision
}

// changes returns the changes of a query, each as text.
func (s etcdStore) changes(q sqlstore.ChangesQuery) (all []string) {
	s.Helper()
	q.Kept, q.Limit = true, 100
	found, err := s.objects.Changes(s.Context(), q)
	if err != nil {
		s.Fatal(err)
	}
	for _, c := range found {
		text := strings.Join(slices.DeleteFunc([]string{
			c.Author.Verb, c.Author.Subresource, c.New.Of().String(), c.New.Owner.String(), c.New.Namespace, c.New.Name,
			c.New.UID, c.Author.Manager,
		}, func(s string) bool { return s == "" }), " ")
		if c.Author.User != "" {
			text += " by " + c.Author.User
		}
		all = append(all, text)
	}
	return all
}

func (s etcdStore) mustBe(q sqlstore.ChangesQuery, want ...string) {
	s.Helper()
	if diff := cmp.Diff(want, s.changes(q)); diff != "" {
		s.Errorf("%+v (-want +got):\n%s", q, diff)
	}
}

// deployment is a Deployment as a stock server stores it, and managed its managed fields.
func deployment(t *testing.T, replicas int32, managed ...metav1.ManagedFieldsEntry) []byte {
	return inProtobuf(t, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid-web", ManagedFields: managed},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas},
	})
}

func managedBy(manager, subresource string, at int64) metav1.ManagedFieldsEntry {
	operation := metav1.ManagedFieldsOperationUpdate
	if manager == "argocd" {
		operation = metav1.ManagedFieldsOperationApply
	}
	return metav1.ManagedFieldsEntry{Manager: manager, Operation: operation, APIVersion: "apps/v1",
		Subresource: subresource, Time: &metav1.Time{Time: time.Unix(at, 0)}, FieldsType: "FieldsV1",
		FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{}}`)}}
}

func service(t *testing.T) []byte {
	return inProtobuf(t, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid-svc"}})
}

// What kube-apiserver has put is read by object, whatever the form.
func TestObjects_ChangesAreOfObjects(t *testing.T) {
	t.Parallel()
	onEachEtcdStore(t, func(s etcdStore) {
		s.put("compact_rev_key", []byte("1"))
		s.put("/registry/ranges/serviceips", []byte("k8s\x00"))
		s.put("/registry/namespaces/shop",
			inProtobuf(s.T, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", UID: "uid-ns"}}))
		s.put("/registry/services/specs/shop/web", service(s.T))
		s.put("/registry/services/endpoints/shop/web", inProtobuf(s.T,
			&corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid-eps"}}))
		s.put("/registry/example.com/widgets/ns/w", []byte(widget+"\n"))
		s.put("/registry/secrets/shop/s", []byte("k8s:enc:aescbc:v1:key1:xxxx"))
		s.put("/registry/futures/shop/f", []byte("k8s\x00of a later release"))
		s.put("/registry/minions/n",
			inProtobuf(s.T, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid-node"}}))
		s.put("/registry/minions/n", nil)
		s.put("/registry/configmaps/shop/other", // of another name than its key
			inProtobuf(s.T, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "m", UID: "uid-m"}}))
		all := []string{
			"create /.byre builtin compact_rev_key",
			"create ranges.byre builtin /serviceips",
			"create namespaces builtin shop uid-ns",
			"create services builtin shop web uid-svc",
			"create endpoints builtin shop web uid-eps",
			"create widgets.example.com custom ns w uid-of-widget",
			"create secrets builtin shop s",
			"create futures custom shop f",
			"create nodes builtin n uid-node",
			"delete nodes builtin n uid-node",
			"create configmaps builtin shop other",
		}
		s.mustBe(sqlstore.ChangesQuery{}, all...)
		s.mustBe(sqlstore.ChangesQuery{Namespaces: []string{"shop"}}, all...)

		histories, err := s.objects.Histories(s.Context())
		if err != nil {
			s.Fatal(err)
		}
		var got []string
		for _, h := range histories {
			got = append(got, h.String())
		}
		slices.Sort(got)
		want := []string{"/.byre", "configmaps", "endpoints", "futures", "namespaces", "nodes", "ranges.byre", "secrets",
			"services", "widgets.example.com"}
		if diff := cmp.Diff(want, got); diff != "" {
			s.Errorf("histories (-want +got):\n%s", diff)
		}
		r, _, err := s.objects.Get(s.Context(), changes.NamespaceKey("shop"))
		if err != nil || r.Created != 3 || r.UID != "uid-ns" || r.Key != changes.NamespaceKey("shop") {
			s.Errorf("the namespace is %+v, %v", r, err)
		}
		for key, want := range map[sqlstore.Key]error{
			{Resource: "futures", Owner: sqlstore.Custom, Namespace: "shop", Name: "f"}: nil,
			{Resource: "services", Namespace: "shop", Name: "web"}:                      nil,
			{Resource: "services", Name: "shop/web"}:                                    sqlstore.ErrNotFound,
			{Group: "byre", Resource: "/", Name: "compact_rev_key"}:                     sqlstore.ErrNotFound,
			{Resource: "nodes", Name: "n"}:                                              sqlstore.ErrNotFound,
			{Resource: "nothing", Name: "n"}:                                            sqlstore.ErrNotFound,
		} {
			if r, _, err := s.objects.Get(s.Context(), key); !errors.Is(err, want) || err == nil && r.Key != key {
				s.Errorf("%v is %+v, %v", key, r, err)
			}
		}
	})
}

// A query finds what it selects of the objects, and is no longer for what else there is.
func TestObjects_QueriesSelectObjects(t *testing.T) {
	t.Parallel()
	onEachEtcdStore(t, func(s etcdStore) {
		for _, namespace := range []string{"default", "shop", "shop-2"} {
			for _, name := range []string{"a", "ab"} {
				s.put("/registry/configmaps/"+namespace+"/"+name, fmt.Appendf(nil,
					`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":%q,"namespace":%q,"uid":"u"}}`, name, namespace))
			}
		}
		s.put("/registry/services/specs/shop/web", service(s.T))
		s.put("/registry/clusterroles/a",
			[]byte(`{"kind":"ClusterRole","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"a","uid":"u"}}`))
		maps, roles := &sqlstore.Resource{Resource: "configmaps"},
			&sqlstore.Resource{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}
		in := []string{"shop"}
		s.mustBe(sqlstore.ChangesQuery{Of: maps, Namespaces: in}, "create configmaps builtin shop a u",
			"create configmaps builtin shop ab u")
		s.mustBe(sqlstore.ChangesQuery{Of: maps, Namespaces: in, Name: "a"}, "create configmaps builtin shop a u")
		s.mustBe(sqlstore.ChangesQuery{Of: maps, Namespaces: []string{"default", ""}, Name: "ab"},
			"create configmaps builtin default ab u")
		s.mustBe(sqlstore.ChangesQuery{Of: maps, Namespaces: []string{"none"}})
		s.mustBe(sqlstore.ChangesQuery{Of: maps, Namespaces: []string{""}})
		cluster := "create clusterroles.rbac.authorization.k8s.io builtin a u"
		s.mustBe(sqlstore.ChangesQuery{Of: roles, Namespaces: []string{"default", ""}}, cluster)
		s.mustBe(sqlstore.ChangesQuery{Of: roles, Namespaces: []string{"default", ""}, Name: "a"}, cluster)
		s.mustBe(sqlstore.ChangesQuery{Of: roles, Namespaces: in})
		services, endpoints := &sqlstore.Resource{Resource: "services"}, &sqlstore.Resource{Resource: "endpoints"}
		s.mustBe(sqlstore.ChangesQuery{Of: services}, "create services builtin shop web uid-svc")
		s.mustBe(sqlstore.ChangesQuery{Of: services, Namespaces: in, Name: "web"}, "create services builtin shop web uid-svc")
		s.mustBe(sqlstore.ChangesQuery{Of: endpoints})
		s.mustBe(sqlstore.ChangesQuery{Of: endpoints, Namespaces: in})
		s.mustBe(sqlstore.ChangesQuery{Of: &sqlstore.Resource{Resource: "nothing"}})
	})
}

// Who has changed an object is what its managed fields say for certain, and nothing else.
func TestObjects_ManagersAreKnownOrAbsent(t *testing.T) {
	t.Parallel()
	onEachEtcdStore(t, func(s etcdStore) {
		created, status := managedBy("kubectl-create", "", 100), managedBy("kube-controller-manager", "status", 101)
		for _, step := range []struct {
			want    string
			managed []metav1.ManagedFieldsEntry
		}{
			{"create deployments.apps builtin shop web uid-web kubectl-create", []metav1.ManagedFieldsEntry{created}},
			{"update status deployments.apps builtin shop web uid-web kube-controller-manager",
				[]metav1.ManagedFieldsEntry{created, status}},
			{"update deployments.apps builtin shop web uid-web", // a second time in the second
				[]metav1.ManagedFieldsEntry{created, status}},
			{"apply deployments.apps builtin shop web uid-web argocd",
				[]metav1.ManagedFieldsEntry{created, status, managedBy("argocd", "", 102)}},
			{"update deployments.apps builtin shop web uid-web", // of two at once
				[]metav1.ManagedFieldsEntry{managedBy("a", "", 103), managedBy("b", "", 103)}},
			{"update deployments.apps builtin shop web uid-web", nil},
		} {
			after := s.put("/registry/deployments/shop/web", deployment(s.T, int32(len(step.managed)), step.managed...)) - 1
			s.mustBe(sqlstore.ChangesQuery{After: after}, step.want)
		}
	})
}
