package crd_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/yaml"
)

func do(t testing.TB, handler http.Handler, method, path, body string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, req)
	return w
}

// parse decodes a definition from YAML.
func parse(t testing.TB, text string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(text), crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

// object decodes an object from YAML.
func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// define creates a definition and waits until it is established.
func (s *server) define(t testing.TB, text string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	return s.establish(t, parse(t, text))
}

func (s *server) establish(t testing.TB, crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd, err := s.definitions.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s.await(t, crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return crd != nil && apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
	})
}

// await watches a definition until wanted accepts it; nil stands for its absence.
func (s *server) await(t testing.TB, name string, wanted func(*apiextensionsv1.CustomResourceDefinition) bool) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	definitions, options := s.definitions.ApiextensionsV1().CustomResourceDefinitions(), metav1.SingleObject(metav1.ObjectMeta{Name: name})
	list, err := definitions.List(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	var last *apiextensionsv1.CustomResourceDefinition
	if len(list.Items) > 0 {
		last = &list.Items[0]
	}
	if wanted(last) {
		return last
	}
	options.ResourceVersion = list.ResourceVersion
	events, err := definitions.Watch(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		crd, ok := event.Object.(*apiextensionsv1.CustomResourceDefinition)
		if !ok {
			t.Fatalf("watch of %s: %v", name, event.Object)
		}
		last = crd
		if event.Type == apiwatch.Deleted {
			crd = nil
		}
		if wanted(crd) {
			return crd
		}
	}
	t.Fatalf("%s did not reach the wanted state: %+v", name, last)
	return nil
}

func gone(crd *apiextensionsv1.CustomResourceDefinition) bool { return crd == nil }

var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

const widgetDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: widgets.example.com
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}"}
spec:
  group: example.com
  scope: Namespaced
  names:
    plural: widgets
    singular: widget
    kind: Widget
    listKind: WidgetList
    shortNames: [wd]
    categories: [all]
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale:
        specReplicasPath: .spec.replicas
        statusReplicasPath: .status.replicas
        labelSelectorPath: .status.selector
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    - {name: Replicas, type: integer, jsonPath: .spec.replicas}
    selectableFields:
    - jsonPath: .spec.color
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [size]
            properties:
              size: {type: integer, minimum: 1, maximum: 10}
              replicas: {type: integer, default: 1}
              color: {type: string, enum: [red, green, blue], default: red}
              note: {type: string, nullable: true}
              port: {x-kubernetes-int-or-string: true}
              free: {type: object, x-kubernetes-preserve-unknown-fields: true}
              tags: {type: array, items: {type: string}, x-kubernetes-list-type: set}
              parts:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items:
                  type: object
                  required: [name]
                  properties:
                    name: {type: string}
                    weight: {type: integer}
              template:
                type: object
                x-kubernetes-embedded-resource: true
                x-kubernetes-preserve-unknown-fields: true
            x-kubernetes-validations:
            - rule: "!has(self.replicas) || self.replicas <= self.size"
              message: more replicas than size
            - rule: "self.size >= oldSelf.size"
              messageExpression: "oldSelf.size > 5 ? 'a big size may not shrink' : 'size may not shrink'"
              fieldPath: .size
          status:
            type: object
            properties:
              replicas: {type: integer}
              selector: {type: string}
              phase: {type: string}
`
