package crd_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"byre/apiserver/process"
	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// counter is an encryption at rest that does not change values and counts how often it
// encrypts and decrypts.
type counter struct{ reads, writes atomic.Int64 }

func (c *counter) TransformFromStorage(_ context.Context, data []byte, _ value.Context) ([]byte, bool, error) {
	c.reads.Add(1)
	return data, false, nil
}

func (c *counter) TransformToStorage(_ context.Context, data []byte, _ value.Context) ([]byte, error) {
	c.writes.Add(1)
	return data, nil
}

// createMany creates widgets in several namespaces. metadata is JSON that is added to the
// metadata of each.
func (s *server) createMany(t *testing.T, instances, namespaces int, metadata string) {
	t.Helper()
	var creators errgroup.Group
	creators.SetLimit(32)
	for i := range instances {
		creators.Go(func() error {
			path := fmt.Sprintf("/apis/example.com/v1/namespaces/ns-%d/widgets", i%namespaces)
			body := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w%d"%s},"spec":{"size":3}}`,
				i, metadata)
			if w := s.do(t, http.MethodPost, path, body); w.Code != http.StatusCreated {
				return fmt.Errorf("create: %d %s", w.Code, w.Body)
			}
			return nil
		})
	}
	if err := creators.Wait(); err != nil {
		t.Fatal(err)
	}
}

// TestFinalizer_CleaningIsLinear deletes instances as the finalizer of a definition does:
// each is written once and read a bounded number of times, in any number of namespaces.
func TestFinalizer_CleaningIsLinear(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	const instances, namespaces = 600, 150
	for _, kind := range dbtest.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			c := &counter{}
			s := start(t, kind.Open(t), func(d *process.Dependencies) {
				d.Storage.Transformers = func(schema.GroupResource) value.Transformer { return c }
			})
			definition := s.define(t, widgetDefinition)
			s.createMany(t, instances, namespaces, `,"finalizers":["example.com/not-done"]`)
			cleaner, err := s.Cleaner(definition)
			if err != nil {
				t.Fatal(err)
			}
			c.reads.Store(0)
			c.writes.Store(0)
			list, err := cleaner.List(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			seen := sets.New[string]()
			for _, item := range list.(*unstructured.UnstructuredList).Items {
				if namespace := item.GetNamespace(); !seen.Has(namespace) {
					seen.Insert(namespace)
					if _, err := cleaner.DeleteCollection(request.WithNamespace(t.Context(), namespace), rest.ValidateAllObjectFunc,
						nil, nil); err != nil {
						t.Fatal(err)
					}
				}
			}
			if reads, writes := c.reads.Load(), c.writes.Load(); reads > 4*instances || writes != instances {
				t.Errorf("%d instances were read %d and written %d times", instances, reads, writes)
			}
			left, err := s.dynamic.Resource(widgets).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, item := range left.Items {
				if item.GetDeletionTimestamp() == nil {
					t.Fatalf("%s was not deleted", item.GetName())
				}
			}
			if len(left.Items) != instances {
				t.Errorf("%d instances are left", len(left.Items))
			}
		})
	}
}

// TestCleaning_GoesOnAfterAFailure: if an instance of the first page cannot be deleted, all
// others are deleted, also those of later pages.
func TestCleaning_GoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("makes 501 objects")
	}
	onDatabases(t, func(t *testing.T, s *server) {
		const instances = 501 // one more than a page
		definition := s.define(t, widgetDefinition)
		s.createMany(t, instances, 1, "")
		cleaner, err := s.Cleaner(definition)
		if err != nil {
			t.Fatal(err)
		}
		refuse := func(_ context.Context, object runtime.Object) error {
			if u := object.(*unstructured.Unstructured); u.GetName() == "w0" {
				return apierrors.NewForbidden(schema.GroupResource{}, "w0", errors.New("not this one"))
			}
			return nil
		}
		if _, err := cleaner.DeleteCollection(t.Context(), refuse, nil, nil); err == nil ||
			!strings.Contains(err.Error(), "not this one") {
			t.Errorf("the failure was not reported: %v", err)
		}
		left, err := s.dynamic.Resource(widgets).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(left.Items) != 1 || left.Items[0].GetName() != "w0" {
			t.Errorf("%d instances are left", len(left.Items))
		}
	})
}

// TestFinalizer_WatchesSeeEveryDelete watches instances on two servers of one database
// while their definition is deleted. The watches read on only after the definition is gone.
// Each of them gets every event and then ends without an error.
func TestFinalizer_WatchesSeeEveryDelete(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	a, b := start(t, dbtest.Connect(t, dsn)), start(t, dbtest.Connect(t, dsn))
	testWatchesSeeEveryDelete(t, a, a, b)
}

// TestFinalizer_WatchesSeeEveryDeleteOnOneServer is TestFinalizer_WatchesSeeEveryDelete
// with one server.
func TestFinalizer_WatchesSeeEveryDeleteOnOneServer(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) { testWatchesSeeEveryDelete(t, s, s) })
}

func testWatchesSeeEveryDelete(t *testing.T, s *server, watched ...*server) {
	const instances = 400
	definition := s.define(t, widgetDefinition)
	var all []apiwatch.Interface
	for _, on := range watched {
		list, err := on.dynamic.Resource(widgets).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, selector := range []string{"", "spec.color=red"} {
			events, err := on.dynamic.Resource(widgets).Watch(t.Context(), metav1.ListOptions{
				ResourceVersion: list.GetResourceVersion(), FieldSelector: selector,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer events.Stop()
			all = append(all, events)
		}
	}
	s.createMany(t, instances, 2, "")
	definitions := s.definitions.ApiextensionsV1().CustomResourceDefinitions()
	if err := definitions.Delete(t.Context(), definition.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, on := range watched {
		on.await(t, definition.Name, gone)
		storetest.Eventually(t, "404", func() bool {
			return on.do(t, http.MethodGet, widgetPath, "").Code == http.StatusNotFound
		})
	}
	for i, events := range all {
		seen := map[apiwatch.EventType]int{}
		for event := range events.ResultChan() {
			seen[event.Type]++
		}
		if seen[apiwatch.Added] != instances || seen[apiwatch.Deleted] != instances || seen[apiwatch.Error] != 0 {
			t.Errorf("watch %d: %v", i, seen)
		}
	}
}

// leftBehind makes rows of widgets that need no definition, as databases have them that were
// written without preconditions.
func (s *server) leftBehind(t *testing.T, version string, names ...string) {
	t.Helper()
	for _, name := range names {
		uid := "uid-" + name
		if _, err := s.store.Commit(t.Context(), sqlstore.Write{
			Op: sqlstore.Create, UID: uid, Encoding: "another",
			Key: sqlstore.Key{Group: "example.com", Resource: "widgets", Owner: sqlstore.Custom, Namespace: "default",
				Name: name},
			Value: fmt.Appendf(nil,
				`{"apiVersion":"example.com/%s","kind":"Widget","metadata":{"name":%q,"namespace":"default","uid":%q,"finalizers":["example.com/f"]},"spec":{"size":3}}`, version, name, uid),
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDefinition_GoesWithEveryRow: the deletion of a definition deletes the rows that were left
// behind in a version that nobody can read any more, whatever finalizers they have.
func TestDefinition_GoesWithEveryRow(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		s.leftBehind(t, "v0", "a", "b")
		s.define(t, widgetDefinition)
		if w := s.do(t, http.MethodGet, widgetPath, ""); w.Code != http.StatusInternalServerError {
			t.Errorf("list: %d %s", w.Code, w.Body)
		}
		s.undefine(t)
		if left := s.remaining(t); len(left) > 0 {
			t.Errorf("rows without a definition: %v", left)
		}
	})
}

// TestDefinition_GoesWithoutItsWebhook: instances that were stored before the storage version changed
// are read by the conversion webhook, which may be gone when the definition is deleted. Those without
// finalizers go by their key; others hold the definition.
func TestDefinition_GoesWithoutItsWebhook(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		c := newConverter(t)
		c.refuse.Store(new("a"))
		s.defineConverted(t, c)
		crd, err := s.definitions.ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), "crontabs.example.com",
			metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		key := sqlstore.Key{Group: "example.com", Resource: "crontabs", Owner: sqlstore.Custom, Namespace: "default",
			Name: "a"}
		write := func(op sqlstore.Op, replaces int64, finalizers string) int64 {
			t.Helper()
			o, err := s.store.Commit(t.Context(),
				sqlstore.Write{Op: op, Key: key, UID: "uid-a", Encoding: "another", Replaces: replaces, Value: []byte(
					`{"apiVersion":"example.com/v1beta1","kind":"CronTab","metadata":{"name":"a","namespace":"default","uid":"uid-a","finalizers":[` + finalizers + `]}}`)})
			if err != nil {
				t.Fatal(err)
			}
			return o.Revision
		}
		revision := write(sqlstore.Create, 0, `"example.com/f"`)
		cleaner, err := s.Cleaner(crd)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cleaner.DeleteCollection(t.Context(), nil, nil, nil); err == nil ||
			!strings.Contains(err.Error(), "refused") {
			t.Errorf("an instance with a finalizer: %v", err)
		}
		write(sqlstore.Update, revision, "")
		const unsafe = `{"kind":"DeleteOptions","apiVersion":"v1",` +
			`"ignoreStoreReadErrorWithClusterBreakingPotential":true}`
		w := s.do(t, http.MethodDelete, crontabPath("v1")+"/a", unsafe)
		if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "the object is not corrupt: ") {
			t.Errorf("an unsafe deletion: %d %s", w.Code, w.Body)
		}
		old := key
		old.Name = "old"
		if _, err := s.store.Commit(t.Context(), sqlstore.Write{
			Op: sqlstore.Create, Key: old, UID: "uid-old", Encoding: "another", Value: []byte(`{"apiVersion":"example.com/v0",` +
				`"kind":"CronTab","metadata":{"name":"old","namespace":"default","uid":"uid-old"}}`),
		}); err != nil {
			t.Fatal(err)
		}
		if w := s.do(t, http.MethodDelete, crontabPath("v1")+"/old", unsafe); w.Code != http.StatusOK {
			t.Errorf("an unsafe deletion of a version that the definition lacks: %d %s", w.Code, w.Body)
		}
		if _, err := cleaner.DeleteCollection(t.Context(), nil, nil, nil); err != nil {
			t.Errorf("an instance without finalizers: %v", err)
		}
		if _, _, err := s.store.Get(t.Context(), key); !errors.Is(err, sqlstore.ErrNotFound) {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// TestUnreadable_IsDeletedByItsKey: with the feature gate AllowUnsafeMalformedObjectDeletion a
// client deletes an instance that nobody can read, as other malformed objects.
func TestUnreadable_IsDeletedByItsKey(t *testing.T) {
	t.Parallel()
	enabled := utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
	want := map[bool]int{true: http.StatusOK, false: http.StatusInternalServerError}[enabled]
	onDatabases(t, func(t *testing.T, s *server) {
		s.leftBehind(t, "v0", "a")
		s.define(t, widgetDefinition)
		const options = `{"kind":"DeleteOptions","apiVersion":"v1","ignoreStoreReadErrorWithClusterBreakingPotential":true}`
		if w := s.do(t, http.MethodDelete, widgetPath+"/a", options); w.Code != want {
			t.Errorf("delete: %d %s", w.Code, w.Body)
		}
		if w := s.do(t, http.MethodGet, widgetPath, ""); w.Code != want {
			t.Errorf("list: %d %s", w.Code, w.Body)
		}
		if left := s.remaining(t); (len(left) == 0) != enabled {
			t.Errorf("rows: %v", left)
		}
	})
}

// TestDefinition_CollectionGoesWithItsInstances deletes a collection of definitions.
func TestDefinition_CollectionGoesWithItsInstances(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		crd := s.define(t, widgetDefinition)
		s.create(t, widget(t, "w", `{"size":3}`))
		if err := s.definitions.ApiextensionsV1().CustomResourceDefinitions().DeleteCollection(t.Context(),
			metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		s.await(t, crd.Name, gone)
		if left := s.remaining(t); len(left) > 0 {
			t.Errorf("rows without a definition: %v", left)
		}
	})
}

// TestDefinition_StaysWhileThereAreInstances: a definition that was cleaned can't go while there
// are instances again. The cleaner deletes what it finds again.
func TestDefinition_StaysWhileThereAreInstances(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		crd := s.define(t, strings.Replace(widgetDefinition, "metadata:\n", "metadata:\n  finalizers: [example.com/f]\n", 1))
		cleaner, err := s.Cleaner(crd)
		if err != nil {
			t.Fatal(err)
		}
		definitions := s.definitions.ApiextensionsV1().CustomResourceDefinitions()
		if err := definitions.Delete(t.Context(), crd.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.await(t, crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) bool { return len(crd.Finalizers) == 1 })
		s.leftBehind(t, "v0", "a")
		remove := func() *httptest.ResponseRecorder {
			return s.do(t, http.MethodPatch, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+crd.Name,
				`{"metadata":{"finalizers":null}}`, "Content-Type", "application/merge-patch+json")
		}
		if w := remove(); w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "it has instances") {
			t.Errorf("removal of the last finalizer: %d %s", w.Code, w.Body)
		}
		if _, err := cleaner.DeleteCollection(t.Context(), nil, nil, nil); err != nil {
			t.Fatal(err)
		}
		s.leftBehind(t, "v0", "b")
		list, err := cleaner.List(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if n, left := meta.LenList(list), s.remaining(t); n != 0 || len(left) > 0 {
			t.Errorf("%d instances, rows %v", n, left)
		}
		if w := remove(); w.Code != http.StatusOK {
			t.Errorf("removal of the last finalizer: %d %s", w.Code, w.Body)
		}
		s.await(t, crd.Name, gone)
	})
}
