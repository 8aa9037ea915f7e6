package query

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/component-base/compatibility"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kubetesting "k8s.io/kubernetes/pkg/api/testing"
	generated "k8s.io/kubernetes/pkg/generated/openapi"

	"byre/apiserver/handlers"
	"byre/apiserver/handlers/documents"
	"byre/apiserver/storage"
	"byre/apiserver/storage/changes"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// lister is a rest.Storage of objects of a type.
type lister struct {
	rest.Lister // not called
	create      func() runtime.Object
}

func (l lister) New() runtime.Object { return l.create() }
func (lister) Destroy()              {}

// builtinFixture serves the tables of all built-in resources.
type builtinFixture struct {
	*fixture
	*BuiltinTables
	stores map[schema.GroupResource]apistorage.Interface
	// kinds are the internal kinds.
	kinds map[schema.GroupResource]schema.GroupVersionKind
}

func newBuiltinFixture(t *testing.T) *builtinFixture {
	t.Helper()
	f := &builtinFixture{fixture: &fixture{TB: t}, stores: map[schema.GroupResource]apistorage.Interface{},
		kinds: map[schema.GroupResource]schema.GroupVersionKind{}}
	store, feed := dbtest.RunStore(t, storetest.NewModel(), watch.Options{})
	getter := storage.NewRESTOptionsGetter(storage.Backend{Store: store, Feed: feed, Program: "v1.37"},
		storage.BuiltinResources(compatibility.NewEffectiveVersionFromString("1.37", "1.37", "1.37")))
	groups := map[string]*handlers.Group{}
	for name := range f.golden() {
		gr := schema.ParseGroupResource(name)
		for kind := range legacyscheme.Scheme.AllKnownTypes() {
			if plural, _ := meta.UnsafeGuessKindToResource(kind); kind.Group == gr.Group && plural.Resource == gr.Resource &&
				kind.Version == runtime.APIVersionInternal {
				f.kinds[gr] = kind
			}
		}
		if f.kinds[gr].Empty() {
			continue // of another server
		}
		create := func() runtime.Object {
			object, err := legacyscheme.Scheme.New(f.kinds[gr])
			if err != nil {
				panic(err)
			}
			return object
		}
		options, err := getter.GetRESTOptions(gr, create())
		if err != nil {
			t.Fatal(err)
		}
		list := func() runtime.Object { return nil }
		if f.stores[gr], _, err = options.Decorator(options.StorageConfig, "/"+options.ResourcePrefix, nil, create, list,
			apistorage.DefaultNamespaceScopedAttr, nil, nil); err != nil {
			t.Fatal(err)
		}
		version := getter.Lookup(gr).StorageVersion().Version
		group := groups[gr.Group]
		if group == nil {
			group = &handlers.Group{Name: gr.Group, Scheme: legacyscheme.Scheme, Storage: map[string]map[string]rest.Storage{}}
			groups[gr.Group] = group
		}
		if group.Storage[version] == nil {
			group.Versions, group.Storage[version] = append(group.Versions, version), map[string]rest.Storage{}
		}
		group.Storage[version][gr.Resource] = lister{create: create}
	}
	var all []handlers.Group
	for _, group := range groups {
		all = append(all, *group)
	}
	names, err := handlers.ModelNames(all)
	if err != nil {
		t.Fatal(err)
	}
	if f.BuiltinTables, err = NewBuiltinTables(all, getter.Lookup,
		documents.NewModels("v1.37", generated.GetOpenAPIDefinitions, legacyscheme.Scheme).Schemas(names...)); err != nil {
		t.Fatal(err)
	}
	f.Storage = New(Config{Feed: feed, Log: &changes.Log{Driver: f.driver, Authorizer: f.fixture}, Tables: f.BuiltinTables,
		Timeout: storetest.Patience, Memory: 64 << 20, Concurrency: 2})
	return f
}

// golden returns the names of the columns of each resource, which is named in full.
func (f *builtinFixture) golden() map[string][]string {
	text, err := os.ReadFile("../../cmd/byre/testdata/sql-columns.csv")
	if err != nil {
		f.Fatal(err)
	}
	tables := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(line, ",")
		tables[fields[0]] = append(tables[fields[0]], fields[1])
	}
	maps.DeleteFunc(tables, func(name string, columns []string) bool {
		_, isDetail := detailTables[name]
		if _, isLog := logTables[name]; isLog {
			return true
		}
		if isDetail || strings.Contains(name, ".") {
			return isDetail
		}
		// The short name of a resource of a group.
		for other, of := range tables {
			if strings.HasPrefix(other, name+".") && slices.Equal(of, columns) {
				return true
			}
		}
		return false
	})
	return tables
}

func (f *builtinFixture) table(name string) *Table {
	f.Helper()
	table, err := f.BuiltinTables.Table(f.Context(), name)
	if err != nil || table == nil {
		f.Fatal(name, err)
	}
	return table
}

// write stores a random object, and returns what Go makes of it: of the stored version, and without types.
func (f *builtinFixture) write(
	gr schema.GroupResource, name string, random *rand.Rand,
) (metav1.Object, map[string]any) {
	f.Helper()
	object, err := legacyscheme.Scheme.New(f.kinds[gr])
	if err != nil {
		f.Fatal(err)
	}
	fuzzer.FuzzerFor(kubetesting.FuzzerFuncs, random, legacyscheme.Codecs).Fill(object)
	accessor, err := meta.Accessor(object)
	if err != nil {
		f.Fatal(err)
	}
	accessor.SetNamespace("fuzz")
	accessor.SetName(name)
	accessor.SetResourceVersion("")
	stored := f.table(FullName(gr)).Store
	out := object.DeepCopyObject()
	if err := f.stores[gr].Create(f.Context(), "/"+strings.Trim(stored.Prefix(), "/")+"/fuzz/"+name, object, out,
		0); err != nil {
		f.Fatalf("%s: %v", gr, err)
	}
	typed, err := legacyscheme.Scheme.ConvertToVersion(out, stored.StorageVersion())
	if err != nil {
		f.Fatal(err)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	if err != nil {
		f.Fatal(err)
	}
	return typed.(metav1.Object), content
}

// Every column of every built-in resource has the value that Go code reads from the typed object.
func TestTables_EqualTypedObjects(t *testing.T) {
	t.Parallel()
	f := newBuiltinFixture(t)
	random := rand.New(rand.NewSource(5))
	const objects = 8
	values := 0
	for gr := range f.kinds {
		table := f.table(FullName(gr))
		var columns []string
		for _, c := range table.Columns {
			columns = append(columns, quote(c.Name))
		}
		for i := range objects {
			name := fmt.Sprint("o", i)
			typed, content := f.write(gr, name, random)
			rows := f.query("SELECT " + strings.Join(columns, ", ") + " FROM " + quote(FullName(gr)) +
				" WHERE namespace = 'fuzz' AND name = '" + name + "'").Status.Rows
			if len(rows) != 1 {
				t.Fatalf("%s: %d rows", gr, len(rows))
			}
			for i, c := range table.Columns {
				want, err := json.Marshal(valueOf(&c, typed, content))
				if err != nil {
					t.Fatal(err)
				}
				if string(want) != "null" {
					values++
				}
				if !equalJSON(t, rows[0][i], want, c.Type) {
					t.Errorf("%s.%s of %s is %s, want %s", gr, c.Name, c.Source(), rows[0][i], want)
				}
			}
			f.expectElements(gr, name, content)
		}
	}
	if len(f.kinds) < 55 || values < 5000 {
		t.Errorf("only %d values of %d resources were compared", values, len(f.kinds))
	}
}

// query asks a statement.
func (f *builtinFixture) query(sql string) *Query {
	f.Helper()
	q := &Query{Spec: Spec{SQL: sql}}
	ctx := request.WithUser(f.Context(), &user.DefaultInfo{Name: "admin"})
	if _, err := f.Create(ctx, q, func(context.Context, runtime.Object) error { return nil }, nil); err != nil {
		f.Fatalf("%s: %v", sql, err)
	}
	return q
}

// expectElements compares the detail tables of all objects with the lists and maps of an object.
func (f *builtinFixture) expectElements(gr schema.GroupResource, name string, content map[string]any) {
	f.Helper()
	table := gr.Resource
	if f.table(table) != f.table(FullName(gr)) {
		table = FullName(gr)
	}
	for detail, of := range detailTables {
		if of.Tables != nil {
			continue
		}
		want := []any{}
		value, _, err := unstructured.NestedFieldNoCopy(content, of.Alternatives[0][0].Path...)
		if err != nil {
			f.Fatal(err)
		}
		var columns []string
		for _, c := range of.Columns[detailOwn:] {
			columns = append(columns, c.Name)
		}
		switch value := value.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(value)) {
				want = append(want, []any{key, value[key]})
			}
		case []any:
			for _, element := range value {
				row := []any{}
				for i := range columns {
					row = append(row,
						valueOf(&Column{Type: of.Columns[detailOwn+i].Type, Path: of.Columns[detailOwn+i].Path[2:]}, &corev1.Event{},
							element.(map[string]any)))
				}
				want = append(want, row)
			}
		}
		data, err := json.Marshal(want)
		if err != nil {
			f.Fatal(err)
		}
		q := f.query("SELECT " + strings.Join(columns, ", ") + " FROM " + detail + " WHERE resource = '" + table +
			"' AND namespace = 'fuzz' AND name = '" + name + "'")
		got, err := json.Marshal(q.Status.Rows)
		if err != nil || string(got) != string(data) {
			f.Errorf("the %s of %s are %s, want %s, %v", detail, gr, got, data, err)
		}
	}
}

// valueOf is the value of a column.
func valueOf(c *Column, typed metav1.Object, content map[string]any) any {
	if owner := metav1.GetControllerOf(typed); strings.HasPrefix(c.Name, "owner_") &&
		c.Source() == "metadata.ownerReferences" {
		if owner == nil {
			return nil
		}
		return map[string]any{"owner_kind": owner.Kind, "owner_name": owner.Name, "owner_uid": owner.UID}[c.Name]
	}
	if pod, ok := typed.(*corev1.Pod); ok && c.Source() == "status.containerStatuses" && c.Type != JSON {
		ready, restarts := 0, int32(0)
		for _, status := range pod.Status.ContainerStatuses {
			restarts += status.RestartCount
			if status.Ready {
				ready++
			}
		}
		switch {
		case pod.Status.ContainerStatuses == nil:
			return nil
		case c.Type == Integer:
			return restarts
		}
		return fmt.Sprintf("%d/%d", ready, len(pod.Status.ContainerStatuses))
	}
	switch c.Name {
	case "object":
		return content
	case MomentName:
		return nil
	}
	value, found, err := unstructured.NestedFieldNoCopy(content, c.Path...)
	if !found || err != nil || value == nil {
		return nil
	}
	if n, ok := value.(string); ok && c.Name == "revision" {
		return json.Number(n)
	}
	if n, ok := value.(int64); ok && c.Type == Text {
		return strconv.FormatInt(n, 10)
	}
	if s, ok := value.(string); ok && c.Type == Quantity {
		q := resource.MustParse(s)
		n, err := strconv.ParseFloat(q.AsDec().String(), 64)
		if err != nil {
			return err
		}
		return n
	}
	if s, ok := value.(string); ok && c.Type == Time {
		at, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			return err
		}
		return at.UTC()
	}
	return value
}

// equalJSON compares values: numbers in JSON by their value, others as they are written.
func equalJSON(t *testing.T, got, want []byte, of Type) bool {
	t.Helper()
	decode := func(data []byte) (value any) {
		d := json.NewDecoder(strings.NewReader(string(data)))
		if of != JSON {
			d.UseNumber()
		}
		if err := d.Decode(&value); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		return value
	}
	return reflect.DeepEqual(decode(got), decode(want))
}
