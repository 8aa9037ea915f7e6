package endpoints_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

// meddler changes managed fields as the name of an object says, and remembers who
// they were of when the object was to be validated.
type meddler struct {
	mu        sync.Mutex
	validated map[string]string
}

func (m *meddler) Handles(operation admission.Operation) bool { return operation == admission.Create }

func (m *meddler) Admit(_ context.Context, attributes admission.Attributes, _ admission.ObjectInterfaces) error {
	object, err := meta.Accessor(attributes.GetObject())
	if err != nil {
		return err
	}
	fields := object.GetManagedFields()
	switch object.GetName() {
	case "renamed":
		fields[0].Manager = "meddler"
	case "dropped":
		fields = nil
	case "spoilt":
		fields = []metav1.ManagedFieldsEntry{{Manager: "meddler", Operation: "Destroy"}}
	}
	object.SetManagedFields(fields)
	return nil
}

func (m *meddler) Validate(_ context.Context, attributes admission.Attributes, _ admission.ObjectInterfaces) error {
	object, err := meta.Accessor(attributes.GetObject())
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.validated[object.GetName()] = managers(object.GetManagedFields())
	return nil
}

func managers(fields []metav1.ManagedFieldsEntry) string {
	var names []string
	for _, f := range fields {
		names = append(names, f.Manager)
	}
	return strings.Join(names, " ")
}

// TestManagedFieldsAfterAdmission: what admission makes of managed fields is
// stored, unless it can't be read.
func TestManagedFieldsAfterAdmission(t *testing.T) {
	m := &meddler{validated: map[string]string{}}
	s := newAdmittingServer(t, nil, m)
	for name, want := range map[string]struct {
		managers string
		warned   bool
	}{
		"left-alone": {managers: "tester"},
		"renamed":    {managers: "meddler"},
		"dropped":    {managers: ""},
		"spoilt":     {managers: "tester", warned: true},
	} {
		t.Run(name, func(t *testing.T) {
			answer, body := (call{method: http.MethodPost, path: "/api/v1/namespaces/field/configmaps?fieldManager=tester",
				body: `{"metadata":{"name":"` + name + `"},"data":{"a":"b"}}`}).answer(t, s.bytes)
			if answer.StatusCode != http.StatusCreated {
				t.Fatalf("status %d: %s", answer.StatusCode, body)
			}
			if warned := strings.Contains(answer.Header.Get("Warning"), "managedFields was in an invalid state"); warned != want.warned {
				t.Errorf("warning %q", answer.Header.Get("Warning"))
			}
			_, stored := (call{method: http.MethodGet, path: "/api/v1/namespaces/field/configmaps/" + name}).answer(t, s.decoded)
			for what, text := range map[string]string{"answered": body, "stored": stored} {
				var object metav1.PartialObjectMetadata
				if err := json.Unmarshal([]byte(text), &object); err != nil {
					t.Fatal(err)
				}
				if got := managers(object.ManagedFields); got != want.managers {
					t.Errorf("%s are fields of %q, want %q", what, got, want.managers)
				}
				if want.managers != "" && !strings.Contains(string(object.ManagedFields[0].FieldsV1.GetRawBytes()), `"f:data"`) {
					t.Errorf("%s are %s", what, object.ManagedFields[0].FieldsV1)
				}
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			if got := m.validated[name]; got != want.managers {
				t.Errorf("validated with fields of %q, want %q", got, want.managers)
			}
		})
	}
}
