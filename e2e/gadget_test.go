package e2e

import (
	"context"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/webhook/conversion"
)

// Gadgets are the custom resources of TestControllerRuntime_ManagerReconciles. They are stored as v1; v1beta1
// has the size as text, so that a version has to be converted.

type gadgetV1 struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   gadgetSpec   `json:"spec"`
	Status gadgetStatus `json:"status,omitempty"`
}

type gadgetSpec struct {
	Size int `json:"size"`
}

type gadgetStatus struct {
	ObservedGeneration int64  `json:"observedGeneration,omitempty"`
	By                 string `json:"by,omitempty"` // the manager that wrote it
}

type gadgetV1beta1 struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   oldGadgetSpec `json:"spec"`
	Status gadgetStatus  `json:"status,omitempty"`
}

type oldGadgetSpec struct {
	Size string `json:"size"`
}

type gadgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []gadgetV1 `json:"items"`
}

type oldGadgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []gadgetV1beta1 `json:"items"`
}

func (h *gadgetV1) DeepCopyObject() runtime.Object {
	c := *h
	h.DeepCopyInto(&c.ObjectMeta)
	return &c
}

func (h *gadgetV1beta1) DeepCopyObject() runtime.Object {
	c := *h
	h.DeepCopyInto(&c.ObjectMeta)
	return &c
}

func (l *gadgetList) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = make([]gadgetV1, len(l.Items))
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopyObject().(*gadgetV1)
	}
	return &c
}

func (l *oldGadgetList) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = make([]gadgetV1beta1, len(l.Items))
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopyObject().(*gadgetV1beta1)
	}
	return &c
}

var (
	gadgetGroup    = schema.GroupVersion{Group: "gadgets.example.com", Version: "v1"}
	oldGadgetGroup = schema.GroupVersion{Group: "gadgets.example.com", Version: "v1beta1"}
)

// gadgetScheme knows gadgets beside everything that client-go knows.
func gadgetScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientscheme.AddToScheme(s))
	s.AddKnownTypeWithName(gadgetGroup.WithKind("Gadget"), &gadgetV1{})
	s.AddKnownTypeWithName(gadgetGroup.WithKind("GadgetList"), &gadgetList{})
	s.AddKnownTypeWithName(oldGadgetGroup.WithKind("Gadget"), &gadgetV1beta1{})
	s.AddKnownTypeWithName(oldGadgetGroup.WithKind("GadgetList"), &oldGadgetList{})
	metav1.AddToGroupVersion(s, gadgetGroup)
	metav1.AddToGroupVersion(s, oldGadgetGroup)
	return s
}

// newGadgetConverter converts between the two versions as a project's webhook would.
func newGadgetConverter(s *runtime.Scheme) (conversion.Converter, error) {
	return conversion.NewHubSpokeConverter(&gadgetV1{}, conversion.NewSpokeConverter(&gadgetV1beta1{},
		func(_ context.Context, from *gadgetV1, to *gadgetV1beta1) error {
			to.ObjectMeta, to.Status, to.Spec.Size = from.ObjectMeta, from.Status, strconv.Itoa(from.Spec.Size)
			return nil
		},
		func(_ context.Context, from *gadgetV1beta1, to *gadgetV1) error {
			size, err := strconv.Atoi(from.Spec.Size)
			if err != nil {
				return fmt.Errorf("spec.size: %w", err)
			}
			to.ObjectMeta, to.Status, to.Spec.Size = from.ObjectMeta, from.Status, size
			return nil
		}))(s)
}

// gadgetDefinition has url and ca for the webhook's address and its CA in base64.
const gadgetDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.gadgets.example.com}
spec:
  group: gadgets.example.com
  scope: Namespaced
  names: {plural: gadgets, singular: gadget, kind: Gadget, listKind: GadgetList}
  conversion:
    strategy: Webhook
    webhook:
      conversionReviewVersions: [v1]
      clientConfig: {url: %q, caBundle: %q}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {size: {type: integer}}}
          status: &status {type: object, properties: {observedGeneration: {type: integer, format: int64}, by: {type: string}}}
  - name: v1beta1
    served: true
    storage: false
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {size: {type: string}}}
          status: *status
`
