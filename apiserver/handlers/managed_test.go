package handlers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

// fieldsPlugin is an admission plugin that changes managed fields in the way that the
// object's name says. It records their managers when the object is validated.
type fieldsPlugin struct {
	mu        sync.Mutex
	validated map[string]string
}

func (m *fieldsPlugin) Handles(operation admission.Operation) bool {
	return operation == admission.Create
}

func (m *fieldsPlugin) Admit(_ context.Context, attributes admission.Attributes, _ admission.ObjectInterfaces) error {
	object, err := meta.Accessor(attributes.GetObject())
	if err != nil {
		return err
	}
	fields := object.GetManagedFields()
	switch object.GetName() {
	case "renamed":
		fields[0].Manager = "plugin"
	case "dropped":
		fields = nil
	case "spoilt":
		fields = []metav1.ManagedFieldsEntry{{Manager: "plugin", Operation: "Destroy"}}
	}
	object.SetManagedFields(fields)
	return nil
}

func (m *fieldsPlugin) Validate(_ context.Context, attributes admission.Attributes, _ admission.ObjectInterfaces) error {
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

// TestManagedFields_AdmissionsChangesAreStored: managed fields that admission has changed
// are stored, unless they are malformed.
func TestManagedFields_AdmissionsChangesAreStored(t *testing.T) {
	t.Parallel()
	m := &fieldsPlugin{validated: map[string]string{}}
	s := newAdmittingServer(t, nil, m)
	for name, want := range map[string]struct {
		managers string
		warned   bool
	}{
		"left-alone": {managers: "tester"},
		"renamed":    {managers: "plugin"},
		"dropped":    {managers: ""},
		"spoilt":     {managers: "tester", warned: true},
	} {
		t.Run(name, func(t *testing.T) {
			answer, body := (call{method: http.MethodPost, path: "/api/v1/namespaces/first/configmaps?fieldManager=tester",
				body: `{"metadata":{"name":"` + name + `"},"data":{"a":"b"}}`}).answer(t, s.bytes)
			if answer.StatusCode != http.StatusCreated {
				t.Fatalf("status %d: %s", answer.StatusCode, body)
			}
			if warned := strings.Contains(answer.Header.Get("Warning"), "managedFields was in an invalid state"); warned != want.warned {
				t.Errorf("warning %q", answer.Header.Get("Warning"))
			}
			_, stored := (call{method: http.MethodGet, path: "/api/v1/namespaces/first/configmaps/" + name}).answer(t, s.upstream)
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

// TestCreate_HasManagedFieldsOfUpstream: a created object has the managed fields that
// upstream computes, for each manager and for requests that bring managed fields.
func TestCreate_HasManagedFieldsOfUpstream(t *testing.T) {
	t.Parallel()
	s := newAdmittingServer(t, nil, &fieldsPlugin{validated: map[string]string{}})
	brought := func(fields string) string {
		return `{"metadata":{"name":"NAME","labels":{"l":""},"managedFields":` + fields + `},"data":{"a":"b"}}`
	}
	for name, c := range map[string]struct{ agent, query, body string }{
		"agent":         {agent: "kube-controller-manager/v1.37.2 (linux)", body: brought("null")},
		"same-shape":    {agent: "kubectl/v1", body: brought("null")},
		"odd-agent":     {agent: "a\tb c \xff\xfe d/1", body: brought("null")},
		"long-agent":    {agent: strings.Repeat("ä", 100), body: brought("null")},
		"no-agent":      {agent: "/", body: brought("null")},
		"field-manager": {agent: "kubectl", query: "?fieldManager=me", body: brought("null")},
		"brought":       {agent: "me", body: brought(`[{"manager":"other","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:a":{}}}}]`)},
		"unreadable":    {agent: "me", body: brought(`[{"manager":"other","operation":"Destroy"}]`)},
		"reset":         {agent: "me", body: brought(`[{}]`)},
		"nothing":       {agent: "me", body: `{"metadata":{"name":"NAME"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			var fields []string
			for i, server := range []*httptest.Server{s.upstream, s.bytes, s.bytes} {
				answer, body := (call{method: http.MethodPost, path: "/api/v1/namespaces/first/configmaps" + c.query, header: map[string]string{"User-Agent": c.agent},
					body: strings.Replace(c.body, "NAME", fmt.Sprintf("%s-%d", name, i), 1)}).answer(t, server)
				if answer.StatusCode != http.StatusCreated {
					t.Fatalf("status %d: %s", answer.StatusCode, body)
				}
				var object metav1.PartialObjectMetadata
				if err := json.Unmarshal([]byte(body), &object); err != nil {
					t.Fatal(err)
				}
				for i := range object.ManagedFields {
					object.ManagedFields[i].Time = nil
				}
				text, err := json.Marshal(object.ManagedFields)
				if err != nil {
					t.Fatal(err)
				}
				fields = append(fields, string(text))
			}
			if fields[1] != fields[0] || fields[2] != fields[0] {
				t.Errorf("fields are\n%s\nand\n%s, upstream's\n%s", fields[1], fields[2], fields[0])
			}
		})
	}
}
