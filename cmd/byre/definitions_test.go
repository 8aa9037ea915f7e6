package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"byre/sqlstore/storetest"
)

// shadowed are built-in resources that definitions are made over. byre's own servers depend
// on objects of the last two.
var shadowed = []schema.GroupVersionResource{
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"},
	{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
}

// A definition over a built-in resource owns none of its objects: they exist while the
// definition does and after its deletion.
func TestDefinition_OverABuiltInResourceOwnsNothing(t *testing.T) {
	t.Parallel()
	onSharedServers(t, func(t *testing.T, s *sharedByre) {
		client := dynamic.NewForConfigOrDie(s.config(t))
		for _, gvr := range shadowed {
			before := uids(t, client, gvr)
			defineOver(t, client, gvr)
			expectUIDs(t, client, gvr, before, "while the definition is there")
			undefine(t, client, gvr)
			expectUIDs(t, client, gvr, before, "after the definition was deleted")
		}
	})
}

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
	Resource: "customresourcedefinitions"}

// uids returns the UIDs of a resource's objects by their names.
func uids(t *testing.T, client dynamic.Interface, gvr schema.GroupVersionResource) map[string]string {
	t.Helper()
	list, err := client.Resource(gvr).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, o := range list.Items {
		found[o.GetName()] = string(o.GetUID())
	}
	return found
}

// expectUIDs accepts additional objects: a definition creates an APIService.
func expectUIDs(
	t *testing.T, client dynamic.Interface, gvr schema.GroupVersionResource, want map[string]string, when string,
) {
	t.Helper()
	got := uids(t, client, gvr)
	for name, uid := range want {
		if got[name] != uid {
			t.Errorf("%s %s: uid of %s is %q, want %q", gvr.Resource, when, name, got[name], uid)
		}
	}
}

func defineOver(t *testing.T, client dynamic.Interface, gvr schema.GroupVersionResource) {
	t.Helper()
	singular := strings.TrimSuffix(gvr.Resource, "s")
	definition := &unstructured.Unstructured{}
	if err := definition.UnmarshalJSON(fmt.Appendf(nil, `{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": {"name": "%[1]s.%[2]s", "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
		"spec": {
			"group": %[2]q, "scope": "Cluster",
			"names": {"plural": %[1]q, "singular": "over%[3]s", "kind": "Over%[3]s"},
			"versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]
		}
	}`, gvr.Resource, gvr.Group, singular)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Resource(definitions).Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the definition is established", func(ctx context.Context) (bool, error) {
		d, err := client.Resource(definitions).Get(ctx, definition.GetName(), metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		value, _, err := unstructured.NestedFieldNoCopy(d.Object, "status", "conditions")
		conditions, _ := value.([]any) // null before the first one
		for _, c := range conditions {
			if c := c.(map[string]any); c["type"] == "Established" && c["status"] == "True" {
				return true, nil
			}
		}
		return false, err
	})
}

func undefine(t *testing.T, client dynamic.Interface, gvr schema.GroupVersionResource) {
	t.Helper()
	name := gvr.GroupResource().String()
	if err := client.Resource(definitions).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the definition is deleted", func(ctx context.Context) (bool, error) {
		_, err := client.Resource(definitions).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}
