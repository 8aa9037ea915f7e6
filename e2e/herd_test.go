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

// Herds are the custom resources of TestManager. They are stored as v1; v1beta1
// has the number of cows as text, so that a version has to be converted.

type herdV1 struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   herdSpec   `json:"spec"`
	Status herdStatus `json:"status,omitempty"`
}

type herdSpec struct {
	Cows int `json:"cows"`
}

type herdStatus struct {
	ObservedGeneration int64  `json:"observedGeneration,omitempty"`
	By                 string `json:"by,omitempty"` // the manager that wrote it
}

type herdV1beta1 struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   oldHerdSpec `json:"spec"`
	Status herdStatus  `json:"status,omitempty"`
}

type oldHerdSpec struct {
	Cows string `json:"cows"`
}

type herdList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []herdV1 `json:"items"`
}

type oldHerdList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []herdV1beta1 `json:"items"`
}

func (h *herdV1) DeepCopyObject() runtime.Object {
	c := *h
	h.DeepCopyInto(&c.ObjectMeta)
	return &c
}

func (h *herdV1beta1) DeepCopyObject() runtime.Object {
	c := *h
	h.DeepCopyInto(&c.ObjectMeta)
	return &c
}

func (l *herdList) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = make([]herdV1, len(l.Items))
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopyObject().(*herdV1)
	}
	return &c
}

func (l *oldHerdList) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = make([]herdV1beta1, len(l.Items))
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopyObject().(*herdV1beta1)
	}
	return &c
}

var (
	herdGroup    = schema.GroupVersion{Group: "ranch.example.com", Version: "v1"}
	oldHerdGroup = schema.GroupVersion{Group: "ranch.example.com", Version: "v1beta1"}
)

// herdScheme knows herds beside everything that client-go knows.
func herdScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientscheme.AddToScheme(s))
	s.AddKnownTypeWithName(herdGroup.WithKind("Herd"), &herdV1{})
	s.AddKnownTypeWithName(herdGroup.WithKind("HerdList"), &herdList{})
	s.AddKnownTypeWithName(oldHerdGroup.WithKind("Herd"), &herdV1beta1{})
	s.AddKnownTypeWithName(oldHerdGroup.WithKind("HerdList"), &oldHerdList{})
	metav1.AddToGroupVersion(s, herdGroup)
	metav1.AddToGroupVersion(s, oldHerdGroup)
	return s
}

// newHerdConverter converts between the two versions as a project's webhook would.
func newHerdConverter(s *runtime.Scheme) (conversion.Converter, error) {
	return conversion.NewHubSpokeConverter(&herdV1{}, conversion.NewSpokeConverter(&herdV1beta1{},
		func(_ context.Context, from *herdV1, to *herdV1beta1) error {
			to.ObjectMeta, to.Status, to.Spec.Cows = from.ObjectMeta, from.Status, strconv.Itoa(from.Spec.Cows)
			return nil
		},
		func(_ context.Context, from *herdV1beta1, to *herdV1) error {
			cows, err := strconv.Atoi(from.Spec.Cows)
			if err != nil {
				return fmt.Errorf("spec.cows: %w", err)
			}
			to.ObjectMeta, to.Status, to.Spec.Cows = from.ObjectMeta, from.Status, cows
			return nil
		}))(s)
}

// herdDefinition has url and ca for the webhook's address and its CA in base64.
const herdDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: herds.ranch.example.com}
spec:
  group: ranch.example.com
  scope: Namespaced
  names: {plural: herds, singular: herd, kind: Herd, listKind: HerdList}
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
          spec: {type: object, properties: {cows: {type: integer}}}
          status: &status {type: object, properties: {observedGeneration: {type: integer, format: int64}, by: {type: string}}}
  - name: v1beta1
    served: true
    storage: false
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {cows: {type: string}}}
          status: *status
`
