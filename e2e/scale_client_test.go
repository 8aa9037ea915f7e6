package e2e

import (
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"
	"sigs.k8s.io/yaml"

	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

const fleetDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: fleets.scale.example.com}
spec:
  group: scale.example.com
  scope: Namespaced
  names: {plural: fleets, singular: fleet, kind: Fleet, listKind: FleetList}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size, labelSelectorPath: .status.selector}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {size: {type: integer, maximum: 9}}}
          status: {type: object, properties: {size: {type: integer}, selector: {type: string}}}
`

const fleetManifest = `
apiVersion: scale.example.com/v1
kind: Fleet
metadata: {name: north}
spec: {size: 2}
`

// TestScaleClient_ScalesACustomResource scales a custom resource as the
// HorizontalPodAutoscaler does: by a client that finds out from discovery alone that
// it can be scaled.
func TestScaleClient_ScalesACustomResource(t *testing.T) {
	t.Parallel()
	for _, name := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testScaleClient(t, startByre(t, openDatabase(t, name)))
		})
	}
}

func testScaleClient(t *testing.T, s *servers.Server) {
	ctx, config := t.Context(), s.Config(servers.AdminToken)
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	definitions := dyn.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"})
	fleets := dyn.Resource(schema.GroupVersionResource{Group: "scale.example.com", Version: "v1",
		Resource: "fleets"}).Namespace("default")
	if _, err := definitions.Create(ctx, fromYAML(t, fleetDefinition), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallySucceeds(t, "a fleet can be made", func() error {
		_, err := fleets.Create(ctx, fromYAML(t, fleetManifest), metav1.CreateOptions{})
		return err
	})
	status := []byte(`{"status":{"size":1,"selector":"fleet=north"}}`)
	if _, err := fleets.Patch(ctx, "north", types.MergePatchType, status, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}

	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	cached := memory.NewMemCacheClient(discover)
	scales, err := scale.NewForConfig(config, restmapper.NewDeferredDiscoveryRESTMapper(cached),
		dynamic.LegacyAPIPathResolverFunc, scale.NewDiscoveryScaleKindResolver(discover))
	if err != nil {
		t.Fatal(err)
	}
	resource, client := schema.GroupResource{Group: "scale.example.com", Resource: "fleets"}, scales.Scales("default")
	var current *autoscalingv1.Scale
	storetest.EventuallySucceeds(t, "the scale can be read", func() error {
		var err error
		current, err = client.Get(ctx, resource, "north", metav1.GetOptions{})
		return err
	})
	want := autoscalingv1.ScaleStatus{Replicas: 1, Selector: "fleet=north"}
	if current.Spec.Replicas != 2 || current.Status != want {
		t.Errorf("the scale is %+v, %+v", current.Spec, current.Status)
	}

	stale := current.DeepCopy()
	current.Spec.Replicas = 5
	if current, err = client.Update(ctx, resource, current, metav1.UpdateOptions{}); err != nil ||
		current.Spec.Replicas != 5 {
		t.Fatalf("the scale became %v: %v", current, err)
	}
	if _, err := client.Update(ctx, resource, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an update of a stale scale: %v", err)
	}
	current.Spec.Replicas = 10
	if _, err := client.Update(ctx, resource, current, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("more than the schema allows: %v", err)
	}
	gvr := resource.WithVersion("v1")
	current, err = client.Patch(ctx, gvr, "north", types.MergePatchType, []byte(`{"spec":{"replicas":7}}`),
		metav1.PatchOptions{})
	if err != nil || current.Spec.Replicas != 7 {
		t.Errorf("the scale became %v: %v", current, err)
	}

	fleet, err := fleets.Get(ctx, "north", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	size, _, _ := unstructured.NestedInt64(fleet.Object, "spec", "size")
	observed, _, _ := unstructured.NestedInt64(fleet.Object, "status", "size")
	if size != 7 || observed != 1 || fleet.GetGeneration() != 3 {
		t.Errorf("the fleet is of size %d, was seen at %d, and is of generation %d", size, observed, fleet.GetGeneration())
	}
}

func fromYAML(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}
