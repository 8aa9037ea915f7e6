package e2e

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

// TestReplicas_DefinitionsGoWithTheirInstances deletes a definition, and creates it again with
// another version, while clients create instances through another process, which is stopped in
// the middle of it. No row is left behind: every list and every deletion succeeds.
func TestReplicas_DefinitionsGoWithTheirInstances(t *testing.T) {
	t.Parallel()
	db := openDatabase(t, "postgres")
	a := startByre(t, db)
	b := startReplica(t, db, a)
	definitions := clientset.NewForConfigOrDie(a.Config(servers.AdminToken)).ApiextensionsV1().CustomResourceDefinitions()
	through := dynamic.NewForConfigOrDie(b.Config(servers.AdminToken))

	instances := func(c dynamic.Interface, version string) dynamic.ResourceInterface {
		return c.Resource(schema.GroupVersionResource{Group: "left.example.com", Version: version,
			Resource: "gadgets"}).Namespace("default")
	}
	var version atomic.Value // of the definition
	var created atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var creators sync.WaitGroup
	defer creators.Wait()
	defer cancel()
	for round := range 6 {
		v := fmt.Sprintf("v%d", round+1)
		if _, err := definitions.Create(t.Context(), definitionOfGadgets(v), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		version.Store(v)
		for n := 0; round == 0 && n < 4; n++ {
			creators.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					v := version.Load().(string)
					object := &unstructured.Unstructured{Object: map[string]any{
						"apiVersion": "left.example.com/" + v, "kind": "Gadget",
						"metadata": map[string]any{"name": fmt.Sprintf("g-%d-%d", n, i)},
					}}
					// Errors are expected, since the definition is deleted and the replica stopped.
					if _, err := instances(through, v).Create(ctx, object, metav1.CreateOptions{}); err == nil {
						created.Add(1)
					}
				}
			})
		}
		before := created.Load()
		storetest.Eventually(t, "instances", func() bool { return created.Load() > before+20 })
		if _, err := instances(dynamic.NewForConfigOrDie(a.Config(servers.AdminToken)), v).List(t.Context(),
			metav1.ListOptions{}); err != nil {
			t.Errorf("list in version %s: %v", v, err)
		}
		if err := b.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		deleteErr := definitions.Delete(t.Context(), "gadgets.left.example.com", metav1.DeleteOptions{})
		if err := b.Signal(syscall.SIGCONT); err != nil || deleteErr != nil {
			t.Fatal(err, deleteErr)
		}
		storetest.Eventually(t, "the deletion of the definition", func() bool {
			_, err := definitions.Get(t.Context(), "gadgets.left.example.com", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	}
	cancel()
	creators.Wait()
	if rows := mustQuery(t, db, `SELECT name FROM objects WHERE "group" = 'left.example.com'`); len(rows) > 0 {
		t.Errorf("rows without a definition: %v", rows)
	}
}

func definitionOfGadgets(version string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "gadgets.left.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "left.example.com",
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gadgets", Singular: "gadget", Kind: "Gadget",
				ListKind: "GadgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
	}
}
