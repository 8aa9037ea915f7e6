package crd_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
)

func widget(t *testing.T, name, spec string) string {
	t.Helper()
	return fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":%q},"spec":%s}`, name, spec)
}

const widgetPath = "/apis/example.com/v1/namespaces/default/widgets"

// TestDefinition_IsServedUntilItsDeletion: instances are served from the time at which the
// definition is established until it is deleted. The controllers change only its status.
func TestDefinition_IsServedUntilItsDeletion(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		if w := s.do(t, http.MethodGet, widgetPath, ""); w.Code != http.StatusNotFound {
			t.Fatalf("before it is defined: %d %s", w.Code, w.Body)
		}
		crd := s.define(t, widgetDefinition)
		for condition, wanted := range map[apiextensionsv1.CustomResourceDefinitionConditionType]bool{
			apiextensionsv1.NamesAccepted:       true,
			apiextensionsv1.Established:         true,
			apiextensionsv1.NonStructuralSchema: false,
			apiextensionsv1.Terminating:         false,
		} {
			if got := apihelpers.IsCRDConditionTrue(crd, condition); got != wanted {
				t.Errorf("condition %s is %v", condition, got)
			}
		}
		var owned string
		for _, entry := range crd.ManagedFields {
			if entry.Subresource == "" {
				owned += entry.FieldsV1.GetRawString()
			}
		}
		if !strings.Contains(owned, `"f:versions"`) {
			t.Errorf("the creator has lost what it owns to the controllers: %s", owned)
		}
		if crd.Spec.Versions[0].Schema == nil || crd.Annotations["kubectl.kubernetes.io/last-applied-configuration"] != "{}" {
			t.Error("the controllers have changed more than the status")
		}
		if got := crd.Status.StoredVersions; len(got) != 1 || got[0] != "v1" {
			t.Errorf("storedVersions: %v", got)
		}
		for i := range 3 {
			w := s.do(t, http.MethodPost, widgetPath, widget(t, fmt.Sprintf("w%d", i), `{"size":3}`))
			if w.Code != http.StatusCreated {
				t.Fatalf("create: %d %s", w.Code, w.Body)
			}
		}
		events, err := s.dynamic.Resource(widgets).Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer events.Stop()

		definitions := s.definitions.ApiextensionsV1().CustomResourceDefinitions()
		if err := definitions.Delete(t.Context(), crd.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.await(t, crd.Name, gone)
		for range events.ResultChan() { // ends when the server ends the watch
		}
		if w := s.do(t, http.MethodGet, widgetPath, ""); w.Code != http.StatusNotFound {
			t.Errorf("after it is gone: %d %s", w.Code, w.Body)
		}
		s.define(t, widgetDefinition)
		list, err := s.dynamic.Resource(widgets).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != 0 {
			t.Errorf("%d instances have outlived their definition", len(list.Items))
		}
	})
}

func TestDefinition_NamesConflict(t *testing.T) {
	t.Parallel()
	onDatabases(t, testNamesConflict)
}

func testNamesConflict(t *testing.T, s *server) {
	s.define(t, widgetDefinition)
	other := parse(t, strings.NewReplacer("widgets", "gadgets", "singular: widget", "singular: gadget").Replace(widgetDefinition))
	definitions := s.definitions.ApiextensionsV1().CustomResourceDefinitions()
	if _, err := definitions.Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	crd := s.await(t, other.Name, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return crd != nil && apihelpers.IsCRDConditionFalse(crd, apiextensionsv1.NamesAccepted)
	})
	condition := apihelpers.FindCRDCondition(crd, apiextensionsv1.NamesAccepted)
	if condition.Reason != "ShortNamesConflict" && condition.Reason != "KindConflict" && condition.Reason != "ListKindConflict" {
		t.Errorf("NamesAccepted: %+v", condition)
	}
	if apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
		t.Error("established in spite of its names")
	}
	if w := s.do(t, http.MethodGet, "/apis/example.com/v1/gadgets", ""); w.Code != http.StatusNotFound {
		t.Errorf("served in spite of its names: %d", w.Code)
	}
}

func TestDefinition_ProtectedGroupNeedsApproval(t *testing.T) {
	t.Parallel()
	onDatabases(t, testProtectedGroupNeedsApproval)
}

func testProtectedGroupNeedsApproval(t *testing.T, s *server) {
	crd := parse(t, strings.ReplaceAll(widgetDefinition, "example.com", "example.k8s.io"))
	_, err := s.definitions.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "api-approved.kubernetes.io") {
		t.Errorf("unapproved: %v", err)
	}
}

// TestDefinition_DeletionDeletesManyInstances: the deletion of a definition deletes more
// instances than one page has, in several namespaces, and waits for one that has a
// finalizer.
func TestDefinition_DeletionDeletesManyInstances(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("makes 510 objects")
	}
	const instances = 510
	onDatabases(t, func(t *testing.T, s *server) {
		crd := s.define(t, widgetDefinition)
		var creators errgroup.Group
		creators.SetLimit(32)
		for i := range instances {
			creators.Go(func() error {
				path := fmt.Sprintf("/apis/example.com/v1/namespaces/ns-%d/widgets", i%3)
				if w := s.do(t, http.MethodPost, path, widget(t, fmt.Sprintf("w%d", i), `{"size":3}`)); w.Code != http.StatusCreated {
					return fmt.Errorf("create: %d %s", w.Code, w.Body)
				}
				return nil
			})
		}
		if err := creators.Wait(); err != nil {
			t.Fatal(err)
		}
		const kept = "/apis/example.com/v1/namespaces/ns-1/widgets/w1"
		finalizers := func(list string) {
			t.Helper()
			w := s.do(t, http.MethodPatch, kept, `{"metadata":{"finalizers":`+list+`}}`, "Content-Type", "application/merge-patch+json")
			if w.Code != http.StatusOK {
				t.Fatalf("finalizers %s: %d %s", list, w.Code, w.Body)
			}
		}
		finalizers(`["example.com/not-done"]`)

		definitions := s.definitions.ApiextensionsV1().CustomResourceDefinitions()
		if err := definitions.Delete(t.Context(), crd.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		storetest.EventuallySucceeds(t, "one instance is left", func() error {
			list, err := s.dynamic.Resource(widgets).List(t.Context(), metav1.ListOptions{})
			if err == nil && (len(list.Items) != 1 || list.Items[0].GetName() != "w1" || list.Items[0].GetDeletionTimestamp() == nil) {
				err = fmt.Errorf("%d are left", len(list.Items))
			}
			return err
		})
		s.await(t, crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
			return crd != nil && apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Terminating)
		})
		if w := s.do(t, http.MethodPost, widgetPath, widget(t, "late", `{"size":3}`)); w.Code != http.StatusForbidden {
			t.Errorf("create while it is terminating: %d %s", w.Code, w.Body)
		}
		finalizers(`null`)
		s.await(t, crd.Name, gone)
	})
}

// TestInstances_OfAnInvalidResourceAreNotFound: a path that no definition can serve is answered as any other.
func TestInstances_OfAnInvalidResourceAreNotFound(t *testing.T) {
	t.Parallel()
	s := start(t, dbtest.SQLite(t))
	for _, path := range []string{"/apis/example.com/v1/%25", "/apis/%25/v1/widgets"} {
		if w := s.do(t, http.MethodGet, path, ""); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}
