package crd_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/value"

	"byre/apiserver/process"
	"byre/migrations"
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
			body := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w%d"%s},"spec":{"size":3}}`, i, metadata)
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
					if _, err := cleaner.DeleteCollection(request.WithNamespace(t.Context(), namespace), rest.ValidateAllObjectFunc, nil, nil); err != nil {
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
		if _, err := cleaner.DeleteCollection(t.Context(), refuse, nil, nil); err == nil || !strings.Contains(err.Error(), "not this one") {
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
		storetest.Eventually(t, "404", func() bool { return on.do(t, http.MethodGet, widgetPath, "").Code == http.StatusNotFound })
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
