package crd_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"byre/sqlstore"
)

// leftBehind makes rows of widgets that need no definition, as databases have them that were
// written without preconditions.
func (s *server) leftBehind(t *testing.T, version string, names ...string) {
	t.Helper()
	for _, name := range names {
		uid := "uid-" + name
		if _, err := s.store.Commit(t.Context(), sqlstore.Write{
			Op: sqlstore.Create, UID: uid, Encoding: "another",
			Key:   sqlstore.Key{Group: "example.com", Resource: "widgets", Owner: sqlstore.Custom, Namespace: "default", Name: name},
			Value: fmt.Appendf(nil, `{"apiVersion":"example.com/%s","kind":"Widget","metadata":{"name":%q,"namespace":"default","uid":%q,"finalizers":["example.com/f"]},"spec":{"size":3}}`, version, name, uid),
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
		crd, err := s.definitions.ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), "crontabs.example.com", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		key := sqlstore.Key{Group: "example.com", Resource: "crontabs", Owner: sqlstore.Custom, Namespace: "default", Name: "a"}
		write := func(op sqlstore.Op, replaces int64, finalizers string) int64 {
			t.Helper()
			o, err := s.store.Commit(t.Context(), sqlstore.Write{Op: op, Key: key, UID: "uid-a", Encoding: "another", Replaces: replaces, Value: []byte(
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
		if _, err := cleaner.DeleteCollection(t.Context(), nil, nil, nil); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("an instance with a finalizer: %v", err)
		}
		write(sqlstore.Update, revision, "")
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
		if err := s.definitions.ApiextensionsV1().CustomResourceDefinitions().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
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
