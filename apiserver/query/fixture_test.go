package query

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/component-base/compatibility"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // the scheme's core group
	"k8s.io/kubernetes/pkg/apis/rbac"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install" // the scheme's group of roles

	"byre/apiserver/storage"
	"byre/apiserver/storage/changes"

	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// fixture is a Storage over some resources in memory.
type fixture struct {
	testing.TB
	*Storage
	store  *sqlstore.Store
	driver sqlstore.Driver
	tables map[string]*Table
	// allowed are "user resource namespace" that may be listed; "" is all namespaces.
	allowed map[string]bool
	asked   atomic.Int64
}

// Names implements Tables.
func (f *fixture) Names() (names []string) {
	for name := range f.tables {
		names = append(names, name)
	}
	return names
}

// Table implements Tables.
func (f *fixture) Table(_ context.Context, name string) (*Table, error) {
	return f.tables[name], nil
}

// Authorize implements the authorizer: admin may list everything.
func (f *fixture) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	f.asked.Add(1)
	if a.GetUser().GetName() == "admin" || f.allowed[a.GetUser().GetName()+" "+a.GetResource()+" "+a.GetNamespace()] {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{TB: t, driver: storetest.NewModel(), allowed: map[string]bool{}}
	var feed *watch.Feed
	f.store, feed = dbtest.RunStore(t, f.driver, watch.Options{})
	getter := storage.NewRESTOptionsGetter(storage.Backend{Store: f.store, Feed: feed, Program: "v1.37"},
		storage.BuiltinResources(compatibility.NewEffectiveVersionFromString("1.37", "1.37", "1.37")))
	open := func(r schema.GroupResource, object, list func() runtime.Object) *storage.Store {
		opts, err := getter.GetRESTOptions(r, object())
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := opts.Decorator(opts.StorageConfig, "/"+opts.ResourcePrefix, nil, object, list, apistorage.DefaultNamespaceScopedAttr, nil, nil); err != nil {
			t.Fatal(err)
		}
		return getter.Lookup(r)
	}
	tableOf := func(gr schema.GroupResource, kind string, of *spec.Schema, object, list func() runtime.Object) *Table {
		gvk := schema.GroupVersionKind{Group: gr.Group, Version: "v1", Kind: kind}
		of.AddExtension("x-kubernetes-group-version-kind", []any{map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": kind}})
		table := NewSchemas(map[string]*spec.Schema{kind: of}).Describe(gr, gvk)
		table.Store = open(gr, object, list)
		return table
	}
	table := func(plural, kind string, of *spec.Schema, object, list func() runtime.Object) *Table {
		return tableOf(core.Resource(plural), kind, of, object, list)
	}
	f.tables = map[string]*Table{
		"pods":         table("pods", "Pod", podSchema(), func() runtime.Object { return &core.Pod{} }, func() runtime.Object { return &core.PodList{} }),
		"services":     table("services", "Service", &spec.Schema{}, func() runtime.Object { return &core.Service{} }, func() runtime.Object { return &core.ServiceList{} }),
		"events":       table("events", "Event", eventSchema(), func() runtime.Object { return &core.Event{} }, func() runtime.Object { return &core.EventList{} }),
		"clusterroles": tableOf(rbac.Resource("clusterroles"), "ClusterRole", &spec.Schema{}, func() runtime.Object { return &rbac.ClusterRole{} }, func() runtime.Object { return &rbac.ClusterRoleList{} }),
		"nodes":        table("nodes", "Node", nodeSchema(), func() runtime.Object { return &core.Node{} }, func() runtime.Object { return &core.NodeList{} }),
	}
	log := &changes.Log{Driver: f.driver, Authorizer: f, Prefix: func(of sqlstore.Resource) string { return of.Resource }}
	f.Storage = New(Config{Feed: feed, Log: log, Tables: f, Timeout: 10 * time.Second, Memory: 64 << 20, Concurrency: 2})
	return f
}

func object(properties map[string]spec.Schema) spec.Schema {
	return spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}, Properties: properties}}
}

func scalar(kind string) spec.Schema {
	return spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{kind}}}
}

func podSchema() *spec.Schema {
	s := object(map[string]spec.Schema{
		"spec":   object(map[string]spec.Schema{"nodeName": scalar("string"), "priority": scalar("integer"), "hostNetwork": scalar("boolean")}),
		"status": object(map[string]spec.Schema{"phase": scalar("string"), "podIP": scalar("string")}),
	})
	return &s
}

func eventSchema() *spec.Schema {
	date := spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"string"}, Format: "date-time"}}
	s := object(map[string]spec.Schema{
		"type": scalar("string"), "reason": scalar("string"), "message": scalar("string"), "count": scalar("integer"),
		"firstTimestamp": date, "lastTimestamp": date, "eventTime": date, "reportingComponent": scalar("string"),
		"source":         object(map[string]spec.Schema{"component": scalar("string")}),
		"series":         object(map[string]spec.Schema{"count": scalar("integer"), "lastObservedTime": date}),
		"involvedObject": object(map[string]spec.Schema{"apiVersion": scalar("string"), "kind": scalar("string"), "namespace": scalar("string"), "name": scalar("string")}),
	})
	return &s
}

func nodeSchema() *spec.Schema {
	s := object(map[string]spec.Schema{"spec": object(map[string]spec.Schema{"podCIDR": scalar("string")})})
	return &s
}

// write stores an object as it is given.
func (f *fixture) write(resource, namespace, name, text string) {
	f.Helper()
	key := sqlstore.Key{Namespace: namespace, Resource: resource, Name: name}
	w := sqlstore.Write{Op: sqlstore.Create, Key: key, Value: []byte(text), UID: "u-" + name}
	if _, err := f.store.Commit(f.Context(), w); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) pod(namespace, name, node string) {
	f.Helper()
	f.write("pods", namespace, name, fmt.Sprintf(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q,"namespace":%q,"uid":"u-%s","creationTimestamp":"2026-01-02T03:04:05Z","labels":{"app":"web"}},"spec":{"nodeName":%q,"priority":7,"hostNetwork":true,"containers":[]},"status":{"phase":"Running"}}`, name, namespace, name, node))
}

// ask runs a query as a user, and returns the result as text, one row a line, or the error.
func (f *fixture) ask(who, sql string, parameters ...string) (string, error) {
	f.Helper()
	return ask(f.Context(), f.Storage, who, sql, parameters...)
}

func ask(ctx context.Context, s *Storage, who, sql string, parameters ...string) (string, error) {
	q := &Query{Spec: Spec{SQL: sql}}
	for _, p := range parameters {
		q.Spec.Parameters = append(q.Spec.Parameters, json.RawMessage(p))
	}
	return run(ctx, s, who, q)
}

// run runs a query as a user, and returns the result as text.
func run(ctx context.Context, s *Storage, who string, q *Query) (string, error) {
	ctx = request.WithUser(ctx, &user.DefaultInfo{Name: who})
	if _, err := s.Create(ctx, q, func(context.Context, runtime.Object) error { return nil }, nil); err != nil {
		return "", err
	}
	var lines []string
	for _, row := range q.Status.Rows {
		var cells []string
		for _, cell := range row {
			cells = append(cells, string(cell))
		}
		lines = append(lines, strings.Join(cells, " "))
	}
	return strings.Join(lines, "\n"), nil
}

func (f *fixture) expect(who, sql, want string) {
	f.Helper()
	if got, err := f.ask(who, sql); err != nil || got != want {
		f.Errorf("%s asks %s:\n%s (%v)\nwant\n%s", who, sql, got, err, want)
	}
}

// code returns the HTTP code of an error, and its message.
func code(err error) (int32, string) {
	if status, ok := err.(apierrors.APIStatus); ok {
		return status.Status().Code, status.Status().Message
	}
	return 0, fmt.Sprint(err)
}
